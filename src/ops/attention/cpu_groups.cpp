#include "ops/attention/cpu_groups.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace winnow::cpu {
namespace {

using ops::kGroupRows;
using ops::kMaxGroups;
using ops::kValuePartDims;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

GroupSizes::GroupSizes(const ops::AttentionShape& shape, std::int64_t most_keys,
                       std::int64_t max_queries)
    : part_keys(most_keys),
      dim(shape.head_dim),
      padded_dim(round_up(dim, kGroupRows)),
      value_floats(round_up(dim, kValuePartDims) * most_keys),
      heads(shape.num_heads / shape.num_kv_heads),
      groups((max_queries * heads + kGroupRows - 1) / kGroupRows) {}

GroupWorkspace::GroupWorkspace(const GroupSizes& sizes, ops::Scratch& scratch)
    : keys(scratch.take_array<float>(sizes.part_keys * sizes.dim)),
      values(scratch.take_array<float>(sizes.value_floats)),
      vector(scratch.take_array<float>(sizes.dim)),
      scores(scratch.take_array<float>(kMaxGroups * sizes.part_keys * kGroupRows)),
      queries(scratch.take_array<float>(sizes.groups * sizes.dim * kGroupRows)),
      outputs(scratch.take_array<float>(sizes.groups * kGroupRows * sizes.padded_dim)),
      maxima(scratch.take_array<float>(sizes.groups * kGroupRows)),
      sums(scratch.take_array<float>(sizes.groups * kGroupRows)),
      carries(scratch.take_array<float>(kGroupRows)),
      limits(scratch.take_array<std::int32_t>(sizes.groups * kGroupRows)),
      hidden(scratch.take_array<std::int32_t>(sizes.groups * kGroupRows)) {
  // Dims between head_dim and its padding are computed and dropped: give them plain numbers.
  if (sizes.dim != sizes.padded_dim) std::fill_n(values, sizes.value_floats, 0.0F);
}

void GroupAttention::clear() const {
  const std::int64_t padded_rows = num_groups_ * kGroupRows;
  std::fill_n(work_.maxima, padded_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(work_.sums, padded_rows, 0.0F);
  std::fill_n(work_.outputs, padded_rows * sizes_.padded_dim, 0.0F);
  std::fill_n(work_.limits, padded_rows, 0);
  std::fill_n(work_.hidden, padded_rows, 0);
}

void GroupAttention::set_value(std::int64_t key, const float* value) const {
  for (std::int64_t d = 0; d < sizes_.dim; d += kValuePartDims) {
    std::memcpy(work_.values + d * sizes_.part_keys + key * kValuePartDims, value + d,
                static_cast<std::size_t>(std::min<std::int64_t>(kValuePartDims, sizes_.dim - d)) *
                    sizeof(float));
  }
}

void GroupAttention::decode(const CachePlane& k, const CachePlane& v, DequantMode mode,
                            const std::byte* row, int slot, std::int64_t count) const {
  const auto dim = static_cast<std::size_t>(sizes_.dim);
  decode_cache_vector(k.dtype, mode, k.data(row, slot), nullptr,
                      {work_.keys, static_cast<std::size_t>(count) * dim}, kernels_.codecs);
  for (std::int64_t t = 0; t < count; ++t) {
    decode_cache_vector(v.dtype, mode, v.data(row, slot + static_cast<int>(t)), nullptr,
                        {work_.vector, dim}, kernels_.codecs);
    set_value(t, work_.vector);
  }
}

void GroupAttention::set_limit(std::int64_t query, std::int32_t limit, std::int32_t hidden) const {
  std::fill_n(work_.limits + query * sizes_.heads, sizes_.heads, limit);
  std::fill_n(work_.hidden + query * sizes_.heads, sizes_.heads, hidden);
}

/// The most keys that a row of the group reads of the current part.
std::int32_t GroupAttention::limit_of(std::int64_t group) const {
  const std::int32_t* const limits = work_.limits + group * kGroupRows;
  return *std::max_element(limits, limits + kGroupRows);
}

/// The part in hand, for every group that reads it, a few groups at a time.
void GroupAttention::attend() const {
  std::int64_t groups[kMaxGroups];
  std::size_t count = 0;
  for (std::int64_t group = 0; group < num_groups_; ++group) {
    if (limit_of(group) > 0) groups[count++] = group;
    if (count == kMaxGroups || (count > 0 && group + 1 == num_groups_)) {
      attend_groups({groups, count});
      count = 0;
    }
  }
}

void GroupAttention::attend_groups(std::span<const std::int64_t> groups) const {
  ops::ScoreTask task{.queries = {},
                      .num_groups = static_cast<int>(groups.size()),
                      .keys = work_.keys,
                      .num_keys = 0,
                      .dim = sizes_.dim,
                      .scale = scale_,
                      .scores = {}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    task.queries[i] = work_.queries + groups[i] * sizes_.dim * kGroupRows;
    task.scores[i] = work_.scores + static_cast<std::int64_t>(i) * sizes_.part_keys * kGroupRows;
    task.num_keys = std::max<std::int64_t>(task.num_keys, limit_of(groups[i]));
  }
  kernels_.table.attention->score(task);
  for (std::size_t i = 0; i < groups.size(); ++i) add_group(groups[i], task.scores[i]);
}

void GroupAttention::add_group(std::int64_t group, float* scores) const {
  const std::int64_t row = group * kGroupRows;
  for (std::int64_t i = 0; i < kGroupRows; ++i) {
    for (std::int32_t t = 0; t < work_.hidden[row + i]; ++t) {
      scores[t * kGroupRows + i] = -std::numeric_limits<float>::infinity();
    }
  }
  kernels_.table.attention->softmax({.scores = scores,
                                     .num_keys = limit_of(group),
                                     .limits = work_.limits + row,
                                     .maxima = work_.maxima + row,
                                     .sums = work_.sums + row,
                                     .carries = work_.carries});
  kernels_.table.attention->add_values({.weights = scores,
                                        .limits = work_.limits + row,
                                        .carries = work_.carries,
                                        .values = work_.values,
                                        .block_tokens = sizes_.part_keys,
                                        .dim = sizes_.padded_dim,
                                        .outputs = work_.outputs + row * sizes_.padded_dim});
}

}  // namespace winnow::cpu
