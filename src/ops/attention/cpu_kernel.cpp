// Blocks of keys and values against sixteen rows (cpu_kernel.h), in the order of attention.h.
//
// Floor. A (query, block) pair of M3's 16 heads takes 2 · 128 · 128 vector multiply-adds, so 16,384
// cycles at two per cycle. Scoring keeps sums of several keys and groups in registers, lanes along
// rows: per dim one vector of queries per group and one broadcast per key. Adding values keeps four
// rows × 64 dims, lanes along dims. Both then need at most 0.5 loads per multiply-add from caches
// that serve one. The softmax is about 25 instructions per 16 (row, key) pairs against 256
// multiply-adds.
#include "ops/attention/cpu_kernel.h"

#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

static_assert(kGroupRows == kLanes);

/// Head size that the loops are compiled for; others go through the same code with a variable.
constexpr int64_t kUsualDim = 128;

/// Scores of `K` keys for `G` groups. A known dim makes the keys' addresses constants.
template <int G, int K, int64_t known_dim>
[[gnu::always_inline]] inline void score_keys(const ScoreTask& task, int first_group,
                                              int64_t first_key) {
  const int64_t dim = known_dim > 0 ? known_dim : task.dim;
  const float* const keys = task.keys + first_key * dim;
  Vec sums[G][K];
  WINNOW_UNROLL
  for (int g = 0; g < G; ++g) {
    WINNOW_UNROLL
    for (int k = 0; k < K; ++k) sums[g][k] = zero();
  }
  for (int64_t d = 0; d < dim; ++d) {
    Vec queries[G];
    WINNOW_UNROLL
    for (int g = 0; g < G; ++g) queries[g] = load(task.queries[first_group + g] + d * kLanes);
    WINNOW_UNROLL
    for (int k = 0; k < K; ++k) {
      const Vec key = broadcast(keys[k * dim + d]);
      WINNOW_UNROLL
      for (int g = 0; g < G; ++g) sums[g][k] = fma(queries[g], key, sums[g][k]);
    }
  }
  const Vec scale = broadcast(task.scale);
  WINNOW_UNROLL
  for (int g = 0; g < G; ++g) {
    WINNOW_UNROLL
    for (int k = 0; k < K; ++k) {
      store(task.scores[first_group + g] + (first_key + k) * kLanes, mul(sums[g][k], scale));
    }
  }
}

template <int G, int K, int64_t known_dim>
[[gnu::noinline]] void score_all(const ScoreTask& task, int first_group) {
  int64_t key = 0;
  for (; key + K <= task.num_keys; key += K) score_keys<G, K, known_dim>(task, first_group, key);
  for (; key < task.num_keys; ++key) score_keys<G, 1, known_dim>(task, first_group, key);
}

template <int G, int K>
void score_groups(const ScoreTask& task, int first_group) {
  if (task.dim == kUsualDim) {
    score_all<G, K, kUsualDim>(task, first_group);
  } else {
    score_all<G, K, 0>(task, first_group);
  }
}

void score(const ScoreTask& task) {
  if constexpr (kRegisters < 32) {
    // Five sums, a query vector and a key: what fits eight registers.
    for (int g = 0; g < task.num_groups; ++g) score_groups<1, 5>(task, g);
  } else {
    switch (task.num_groups) {
      case 1:
        return score_groups<1, 16>(task, 0);
      case 2:  // one after the other beats two at once: 8,530 cycles a group against 9,700
        score_groups<1, 16>(task, 0);
        return score_groups<1, 16>(task, 1);
      case 3:
        return score_groups<3, 8>(task, 0);
      default:
        return score_groups<4, 6>(task, 0);
    }
  }
}

void softmax(const SoftmaxTask& task) {
  alignas(64) float limits[kLanes];
  bool is_uniform = true;
  for (int i = 0; i < kLanes; ++i) {
    limits[i] = static_cast<float>(task.limits[i]);
    is_uniform = is_uniform && task.limits[i] == task.num_keys;
  }
  const Vec limit = load(limits);
  const Vec lowest = broadcast(-__builtin_inff());
  const Vec old_maximum = load(task.maxima);
  Vec maximum = old_maximum;
  for (int64_t t = 0; t < task.num_keys; ++t) {
    Vec x = load(task.scores + t * kLanes);
    if (!is_uniform) x = select_less(broadcast(static_cast<float>(t)), limit, x, lowest);
    maximum = max(x, maximum);
  }
  Vec carry = exp(sub(old_maximum, maximum));
  const Vec old_sum = load(task.sums);
  Vec sum = mul(old_sum, carry);
  for (int64_t t = 0; t < task.num_keys; ++t) {
    Vec p = exp(sub(load(task.scores + t * kLanes), maximum));
    if (!is_uniform) p = select_less(broadcast(static_cast<float>(t)), limit, p, zero());
    store(task.scores + t * kLanes, p);
    sum = add(sum, p);
  }
  if (!is_uniform) {
    // A lane that reads nothing keeps its state (its maximum may still be -inf).
    sum = select_less(zero(), limit, sum, old_sum);
    maximum = select_less(zero(), limit, maximum, old_maximum);
    carry = select_less(zero(), limit, carry, broadcast(1.0F));
  }
  store(task.maxima, maximum);
  store(task.sums, sum);
  store(task.carries, carry);
}

/// R rows from `row`, V vectors of dims from `dim`.
template <int R, int V>
[[gnu::always_inline]] inline void add_tile(const ValueTask& task, int row, int64_t dim) {
  const float* const values = task.values +
                              dim / kValuePartDims * kValuePartDims * task.block_tokens +
                              dim % kValuePartDims;
  const float* const weights = task.weights + row;
  float* const out = task.outputs + row * task.dim + dim;
  Vec sums[R][V];
  WINNOW_UNROLL
  for (int r = 0; r < R; ++r) {
    const Vec carry = broadcast(task.carries[row + r]);
    WINNOW_UNROLL
    for (int v = 0; v < V; ++v) sums[r][v] = mul(load(out + r * task.dim + v * kLanes), carry);
  }
  const int64_t num_keys = task.limits[row];
  for (int64_t t = 0; t < num_keys; ++t) {
    Vec value[V];
    WINNOW_UNROLL
    for (int v = 0; v < V; ++v) value[v] = load(values + t * kValuePartDims + v * kLanes);
    WINNOW_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec p = broadcast(weights[t * kLanes + r]);
      WINNOW_UNROLL
      for (int v = 0; v < V; ++v) sums[r][v] = fma(p, value[v], sums[r][v]);
    }
  }
  WINNOW_UNROLL
  for (int r = 0; r < R; ++r) {
    WINNOW_UNROLL
    for (int v = 0; v < V; ++v) store(out + r * task.dim + v * kLanes, sums[r][v]);
  }
}

template <int R>
[[gnu::noinline]] void add_rows(const ValueTask& task, int row, int64_t first_dim,
                                int64_t last_dim) {
  constexpr int kVectors = kRegisters < 32 ? (R == 1 ? 4 : 2) : 4;
  int64_t dim = first_dim;
  for (; dim + kVectors * kLanes <= last_dim; dim += kVectors * kLanes) {
    add_tile<R, kVectors>(task, row, dim);
  }
  for (; dim < last_dim; dim += kLanes) add_tile<R, 1>(task, row, dim);
}

/// How many rows from `row` have the same limit, at most `most`.
int rows_alike(const int32_t* limits, int row, int most) {
  int count = 1;
  while (count < most && row + count < kGroupRows && limits[row + count] == limits[row]) ++count;
  return count;
}

void add_values(const ValueTask& task) {
  constexpr int kRows = kRegisters < 32 ? 2 : 4;
  for (int64_t dim = 0; dim < task.dim; dim += kValuePartDims) {
    const int64_t end = dim + kValuePartDims < task.dim ? dim + kValuePartDims : task.dim;
    for (int row = 0; row < kGroupRows;) {
      if (task.limits[row] == 0) {
        ++row;
        continue;
      }
      if (rows_alike(task.limits, row, kRows) == kRows) {
        add_rows<kRows>(task, row, dim, end);
        row += kRows;
      } else {
        add_rows<1>(task, row, dim, end);
        ++row;
      }
    }
  }
}

/// Groups of sixteen values, one after the other.
[[gnu::always_inline]] inline void decode_groups(const uint8_t* codes, const uint8_t* scales,
                                                 const float* table, int64_t num_groups,
                                                 float* out) {
#pragma GCC unroll 8
  for (int64_t g = 0; g < num_groups; ++g) {
    const float* const row = table + int64_t{scales[g]} * kLanes;
    store(out + g * kLanes, lookup_codes(row, codes + g * (kLanes / 2)));
  }
}

void decode_rows(const Nvfp4Plane& plane, float* out) {
  decode_groups(plane.codes, plane.scales, plane.table, plane.num_vectors * (plane.dim / kLanes),
                out);
}

void decode_parts(const Nvfp4Plane& plane, int64_t block_tokens, float* out) {
  constexpr int64_t kPartGroups = kValuePartDims / kLanes;
  const int64_t num_groups = plane.dim / kLanes;
  const float* const table = plane.table;
  for (int64_t first = 0; first < num_groups; first += kPartGroups) {
    const uint8_t* codes = plane.codes + first * (kLanes / 2);
    const uint8_t* scales = plane.scales + first;
    float* part = out + first * kLanes * block_tokens;
    const int64_t left = num_groups - first;
    for (int64_t t = 0; t < plane.num_vectors; ++t) {
      // Known counts unroll.
      if (left >= kPartGroups) {
        decode_groups(codes, scales, table, kPartGroups, part);
      } else {
        decode_groups(codes, scales, table, left, part);
      }
      codes += num_groups * (kLanes / 2);
      scales += num_groups;
      part += kValuePartDims;
    }
  }
}

void transpose(const float* const* rows, int64_t dim, float* out) {
  for (int r = 0; r < kGroupRows; ++r) {
    const float* const row = rows[r];
    for (int64_t d = 0; d < dim; ++d) out[d * kLanes + r] = row == nullptr ? 0.0F : row[d];
  }
}

void divide(const float* x, float divisor, int64_t dim, float* out) {
  const Vec divisors = broadcast(divisor);
  for (int64_t d = 0; d < dim; d += kLanes) {
    store_first(out + d, dim - d, div(load_first(x + d, dim - d), divisors));
  }
}

}  // namespace

extern const AttentionKernels kAttentionKernels = {.score = score,
                                                   .softmax = softmax,
                                                   .add_values = add_values,
                                                   .decode_rows = decode_rows,
                                                   .decode_parts = decode_parts,
                                                   .transpose = transpose,
                                                   .divide = divide};

}  // namespace winnow::ops::WINNOW_ISA
