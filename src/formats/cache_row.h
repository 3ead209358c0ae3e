// The block-outer cache row: where each layer's K, V, index keys and the drafter's K, V of one
// block of tokens lie in one contiguous row. Source: design.md section 5, spec/model.md 4.6 and 5.
//
//   for each kv head h:                     one contiguous sub-row, so a tensor-parallel rank's
//     for each layer:                       share of a row is one range
//       K data | K scales | V data | V scales
//   for each layer with an index cache:     index-K data | index-K scales      (no head:
//   replicated) for each drafter kv head, drafter layer:  K data | K scales | V data | V scales
//
// Each part is a plane [block_tokens][bytes of one vector] that starts on a multiple of 128 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace winnow {

enum class CacheDType : std::uint8_t { kF32, kBF16, kFp8, kNvfp4 };

/// "fp32", "bf16", "fp8", "nvfp4".
std::string_view cache_dtype_name(CacheDType dtype);

/// Also takes float32, bfloat16 and fp8_e4m3. Throws Error{kInvalidArgument} that lists the names
/// for `flag` (as the user spelt it, e.g. "--kv-cache-dtype"), or Error{kUnsupported} for fp8_e5m2.
CacheDType parse_cache_dtype(std::string_view name, std::string_view flag = "--kv-cache-dtype");

/// Bytes of one vector of `dim` values: elements, and scales (0 unless nvfp4).
std::int64_t cache_data_bytes(CacheDType dtype, int dim);
std::int64_t cache_scale_bytes(CacheDType dtype, int dim);

/// What a row holds, for the heads that one rank keeps.
struct CacheRowShape {
  int num_layers = 0;
  std::vector<int> index_layers;  // layers that have an index cache, ascending
  int num_kv_heads = 0;
  int head_dim = 0;
  int index_head_dim = 0;
  int block_tokens = 0;
  CacheDType kv_dtype = CacheDType::kBF16;
  CacheDType index_dtype = CacheDType::kBF16;

  struct Drafter {
    int num_layers = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    CacheDType dtype = CacheDType::kBF16;
    friend bool operator==(const Drafter&, const Drafter&) = default;
  };
  std::optional<Drafter> drafter;

  friend bool operator==(const CacheRowShape&, const CacheRowShape&) = default;
};

/// One plane of a row. Token t of the block: data at data_offset + t * data_stride bytes from the
/// start of the row, scales at scale_offset + t * scale_stride (nvfp4 only; else the stride is 0).
struct CachePlane {
  std::int64_t data_offset = 0;
  std::int64_t data_stride = 0;
  std::int64_t scale_offset = 0;
  std::int64_t scale_stride = 0;
  CacheDType dtype = CacheDType::kBF16;
  int dim = 0;

  std::byte* data(std::byte* row, int token) const {
    return row + data_offset + token * data_stride;
  }
  const std::byte* data(const std::byte* row, int token) const {
    return row + data_offset + token * data_stride;
  }
  std::byte* scales(std::byte* row, int token) const {
    return row + scale_offset + token * scale_stride;
  }
  const std::byte* scales(const std::byte* row, int token) const {
    return row + scale_offset + token * scale_stride;
  }
};

/// Immutable; any thread.
class CacheRowLayout {
 public:
  /// Throws Error{kInvalidArgument} on sizes that no layout has (0 heads, a head_dim that is not a
  /// multiple of 16 with nvfp4, an index layer outside [0, num_layers) or out of order, …).
  explicit CacheRowLayout(CacheRowShape shape);

  const CacheRowShape& shape() const { return shape_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  /// Bytes of one kv head's sub-row; head h occupies [h * head_bytes(), (h + 1) * head_bytes()).
  std::int64_t head_bytes() const { return head_bytes_; }
  /// Row bytes over block_tokens, rounded up: what `plan` and `inspect` print.
  std::int64_t bytes_per_token() const;

  CachePlane k(int layer, int kv_head) const;
  CachePlane v(int layer, int kv_head) const;
  bool has_index(int layer) const;
  /// The layer must have an index cache (asserted).
  CachePlane index_k(int layer) const;
  CachePlane drafter_k(int layer, int kv_head) const;
  CachePlane drafter_v(int layer, int kv_head) const;

 private:
  CachePlane plane(std::int64_t offset, CacheDType dtype, int dim) const;
  std::int64_t plane_bytes(CacheDType dtype, int dim) const;

  CacheRowShape shape_;
  std::vector<int> index_slot_;  // of a layer, -1 without index cache
  std::int64_t kv_plane_bytes_ = 0;
  std::int64_t head_bytes_ = 0;
  std::int64_t index_begin_ = 0;
  std::int64_t index_plane_bytes_ = 0;
  std::int64_t drafter_begin_ = 0;
  std::int64_t drafter_plane_bytes_ = 0;
  std::int64_t row_bytes_ = 0;
};

}  // namespace winnow
