#include "formats/cache_row.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "formats/nvfp4_cache.h"

namespace winnow {

namespace {

constexpr std::int64_t kPlaneAlign = 128;  // bytes; two cache lines, and what bulk copies want

constexpr std::int64_t align_plane(std::int64_t bytes) {
  return (bytes + kPlaneAlign - 1) / kPlaneAlign * kPlaneAlign;
}

void require(bool condition, std::string_view what, std::int64_t value, std::string_view accepted) {
  if (condition) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cache row: {} is {}, expected {}", what, value, accepted));
}

void check_vector(std::string_view what, int dim, CacheDType dtype) {
  require(dim > 0, what, dim, "a positive number");
  require(dtype != CacheDType::kNvfp4 || dim % kNvfp4Group == 0, what, dim,
          "a multiple of 16 for an nvfp4 cache");
}

}  // namespace

std::string_view cache_dtype_name(CacheDType dtype) {
  switch (dtype) {
    case CacheDType::kF32:
      return "fp32";
    case CacheDType::kBF16:
      return "bf16";
    case CacheDType::kFp8:
      return "fp8";
    case CacheDType::kNvfp4:
      return "nvfp4";
  }
  return "unknown";
}

CacheDType parse_cache_dtype(std::string_view name, std::string_view flag) {
  if (name == "fp32" || name == "float32") return CacheDType::kF32;
  if (name == "bf16" || name == "bfloat16") return CacheDType::kBF16;
  if (name == "fp8" || name == "fp8_e4m3") return CacheDType::kFp8;
  if (name == "nvfp4") return CacheDType::kNvfp4;
  if (name == "fp8_e5m2") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} fp8_e5m2 is not offered: two mantissa bits lose more than "
                            "MiniMax-M3's index scores allow",
                            flag),
                "use fp8 (E4M3), of the same size");
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{} '{}' is not one of bf16 (bfloat16), fp8 (fp8_e4m3), nvfp4, fp32 (float32)",
                  flag, name));
}

std::int64_t cache_data_bytes(CacheDType dtype, int dim) {
  switch (dtype) {
    case CacheDType::kF32:
      return std::int64_t{4} * dim;
    case CacheDType::kBF16:
      return std::int64_t{2} * dim;
    case CacheDType::kFp8:
      return dim;
    case CacheDType::kNvfp4:
      return dim / 2;
  }
  return 0;
}

std::int64_t cache_scale_bytes(CacheDType dtype, int dim) {
  return dtype == CacheDType::kNvfp4 ? dim / kNvfp4Group : 0;
}

CacheRowLayout::CacheRowLayout(CacheRowShape shape) : shape_(std::move(shape)) {
  require(shape_.num_layers > 0, "num_layers", shape_.num_layers, "a positive number");
  require(shape_.num_kv_heads > 0, "num_kv_heads", shape_.num_kv_heads, "a positive number");
  require(shape_.block_tokens > 0, "block_tokens", shape_.block_tokens, "a positive number");
  check_vector("head_dim", shape_.head_dim, shape_.kv_dtype);

  index_slot_.assign(static_cast<std::size_t>(shape_.num_layers), -1);
  int previous = -1;
  int slot = 0;
  for (const int layer : shape_.index_layers) {
    require(layer > previous && layer < shape_.num_layers, "an index layer", layer,
            "layers of the model in ascending order");
    index_slot_[static_cast<std::size_t>(layer)] = slot++;
    previous = layer;
  }

  kv_plane_bytes_ = plane_bytes(shape_.kv_dtype, shape_.head_dim);
  head_bytes_ = 2 * kv_plane_bytes_ * shape_.num_layers;
  index_begin_ = head_bytes_ * shape_.num_kv_heads;
  if (slot > 0) {
    check_vector("index_head_dim", shape_.index_head_dim, shape_.index_dtype);
    index_plane_bytes_ = plane_bytes(shape_.index_dtype, shape_.index_head_dim);
  }
  drafter_begin_ = index_begin_ + index_plane_bytes_ * slot;
  row_bytes_ = drafter_begin_;
  if (shape_.drafter) {
    const CacheRowShape::Drafter& drafter = *shape_.drafter;
    require(drafter.num_layers > 0, "drafter num_layers", drafter.num_layers, "a positive number");
    require(drafter.num_kv_heads > 0, "drafter num_kv_heads", drafter.num_kv_heads,
            "a positive number");
    check_vector("drafter head_dim", drafter.head_dim, drafter.dtype);
    drafter_plane_bytes_ = plane_bytes(drafter.dtype, drafter.head_dim);
    row_bytes_ += 2 * drafter_plane_bytes_ * drafter.num_layers * drafter.num_kv_heads;
  }
}

std::int64_t CacheRowLayout::plane_bytes(CacheDType dtype, int dim) const {
  return align_plane(cache_data_bytes(dtype, dim) * shape_.block_tokens) +
         align_plane(cache_scale_bytes(dtype, dim) * shape_.block_tokens);
}

CachePlane CacheRowLayout::plane(std::int64_t offset, CacheDType dtype, int dim) const {
  const std::int64_t data_stride = cache_data_bytes(dtype, dim);
  return {.data_offset = offset,
          .data_stride = data_stride,
          .scale_offset = offset + align_plane(data_stride * shape_.block_tokens),
          .scale_stride = cache_scale_bytes(dtype, dim),
          .dtype = dtype,
          .dim = dim};
}

std::int64_t CacheRowLayout::bytes_per_token() const {
  return (row_bytes_ + shape_.block_tokens - 1) / shape_.block_tokens;
}

CachePlane CacheRowLayout::k(int layer, int kv_head) const {
  WINNOW_ASSERT(layer >= 0 && layer < shape_.num_layers, "layer of the model", layer);
  WINNOW_ASSERT(kv_head >= 0 && kv_head < shape_.num_kv_heads, "kv head of the row", kv_head);
  return plane(kv_head * head_bytes_ + 2 * kv_plane_bytes_ * layer, shape_.kv_dtype,
               shape_.head_dim);
}

CachePlane CacheRowLayout::v(int layer, int kv_head) const {
  CachePlane v = k(layer, kv_head);
  v.data_offset += kv_plane_bytes_;
  v.scale_offset += kv_plane_bytes_;
  return v;
}

bool CacheRowLayout::has_index(int layer) const {
  return layer >= 0 && layer < shape_.num_layers &&
         index_slot_[static_cast<std::size_t>(layer)] >= 0;
}

CachePlane CacheRowLayout::index_k(int layer) const {
  WINNOW_ASSERT(has_index(layer), "layer has an index cache", layer);
  const std::int64_t slot = index_slot_[static_cast<std::size_t>(layer)];
  return plane(index_begin_ + slot * index_plane_bytes_, shape_.index_dtype, shape_.index_head_dim);
}

CachePlane CacheRowLayout::drafter_k(int layer, int kv_head) const {
  WINNOW_ASSERT(shape_.drafter.has_value(), "row has a drafter");
  const CacheRowShape::Drafter& drafter = *shape_.drafter;
  WINNOW_ASSERT(layer >= 0 && layer < drafter.num_layers, "drafter layer", layer);
  WINNOW_ASSERT(kv_head >= 0 && kv_head < drafter.num_kv_heads, "drafter kv head", kv_head);
  const std::int64_t pair = std::int64_t{kv_head} * drafter.num_layers + layer;
  return plane(drafter_begin_ + 2 * drafter_plane_bytes_ * pair, drafter.dtype, drafter.head_dim);
}

CachePlane CacheRowLayout::drafter_v(int layer, int kv_head) const {
  CachePlane v = drafter_k(layer, kv_head);
  v.data_offset += drafter_plane_bytes_;
  v.scale_offset += drafter_plane_bytes_;
  return v;
}

}  // namespace winnow
