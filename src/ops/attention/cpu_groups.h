// What `attention` and `draft_attention` share on the CPU: the rows of one KV head (query · heads +
// head) in groups of sixteen, their running softmax, and parts of decoded keys and values that are
// added to the groups that read them.
#pragma once

#include <cstdint>
#include <span>

#include "formats/cache_row.h"
#include "ops/attention/cpu_kernel.h"
#include "ops/cpu_ops.h"
#include "ops/op_context.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::cpu {

/// Below this many multiply-adds (some 10 µs of one core) waking other threads costs more.
inline constexpr std::int64_t kParallelAttention = std::int64_t{1} << 19;

/// Sizes that all tasks of a call share.
struct GroupSizes {
  std::int64_t part_keys;  // that are added together at most
  std::int64_t dim;
  std::int64_t padded_dim;  // to 16
  std::int64_t value_floats;
  std::int64_t heads;   // query heads of a KV head
  std::int64_t groups;  // of 16 rows, at most

  GroupSizes(const ops::AttentionShape& shape, std::int64_t most_keys, std::int64_t max_queries);
};

/// One thread's arrays.
struct GroupWorkspace {
  float* keys = nullptr;     // [part_keys][dim]
  float* values = nullptr;   // [part of 64 dims][part_keys][64]
  float* vector = nullptr;   // [dim]
  float* scores = nullptr;   // [kMaxGroups][part_keys][16]
  float* queries = nullptr;  // [groups][dim][16]
  float* outputs = nullptr;  // [groups][16][padded_dim]
  float* maxima = nullptr;   // [groups][16]
  float* sums = nullptr;
  float* carries = nullptr;        // [16]
  std::int32_t* limits = nullptr;  // [groups][16] keys of the part that the row reads
  std::int32_t* hidden = nullptr;  // [groups][16] of them, the first that it does not see

  GroupWorkspace(const GroupSizes& sizes, ops::Scratch& scratch);
};

/// The rows of one task. Callers decode a part's keys into keys() and its values by set_value(),
/// say what each query reads of it, and attend().
class GroupAttention {
 public:
  GroupAttention(const Kernels& kernels, const GroupSizes& sizes, const GroupWorkspace& work,
                 std::int64_t num_queries, float scale)
      : kernels_(kernels),
        sizes_(sizes),
        work_(work),
        scale_(scale),
        num_rows_(num_queries * sizes.heads),
        num_groups_((num_rows_ + ops::kGroupRows - 1) / ops::kGroupRows) {}

  /// `query_of(row)`: its `dim` floats.
  template <typename QueryOf>
  void begin(const QueryOf& query_of) const {
    clear();
    for (std::int64_t group = 0; group < num_groups_; ++group) {
      const float* rows[ops::kGroupRows] = {};
      for (std::int64_t i = 0; i < ops::kGroupRows; ++i) {
        const std::int64_t row = group * ops::kGroupRows + i;
        if (row < num_rows_) rows[i] = query_of(row);
      }
      kernels_.table.attention->transpose(rows, sizes_.dim,
                                          work_.queries + group * sizes_.dim * ops::kGroupRows);
    }
  }

  float* keys() const { return work_.keys; }
  float* values() const { return work_.values; }
  void set_value(std::int64_t key, const float* value) const;
  /// `count` vectors of planes without scales, from token `slot` of the row on.
  void decode(const CachePlane& k, const CachePlane& v, DequantMode mode, const std::byte* row,
              int slot, std::int64_t count) const;
  /// Query `query` reads the part's first `limit` keys but does not see the first `hidden`: these
  /// get a score of -inf, and so a weight of exactly 0, as if left out.
  void set_limit(std::int64_t query, std::int32_t limit, std::int32_t hidden = 0) const;
  void attend() const;

  /// `out_of(row)`: where its `dim` floats go.
  template <typename OutOf>
  void finish(const OutOf& out_of) const {
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      kernels_.table.attention->divide(work_.outputs + row * sizes_.padded_dim, work_.sums[row],
                                       sizes_.dim, out_of(row));
    }
  }

 private:
  void clear() const;
  std::int32_t limit_of(std::int64_t group) const;
  void attend_groups(std::span<const std::int64_t> groups) const;
  void add_group(std::int64_t group, float* scores) const;

  const Kernels& kernels_;
  const GroupSizes& sizes_;
  const GroupWorkspace& work_;
  float scale_;
  std::int64_t num_rows_;
  std::int64_t num_groups_;
};

}  // namespace winnow::cpu
