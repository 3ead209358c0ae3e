// Index scores, lanes along dims as the contract's sixteen partial sums ask.
//
// Floor at 128 dims: eight vector multiply-adds for one (row, key), four cycles. A tile of four
// rows and four keys needs half a load for each, and its sixteen sums are joined by one
// transposition (30 shuffles, 15 additions for sixteen results) on ports that multiply-adds leave
// free.
#include "ops/index_topk/cpu_kernel.h"

#include "ops/attention/cpu_kernel.h"
#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

constexpr int kTile = 4;

/// Head size that the loops are compiled for; others go through the same code with a variable.
constexpr int64_t kUsualDim = 128;

/// Keys as floats, [key][dim]. `known` is the dim, or 0 when it is only known at run time.
template <int64_t known>
struct FloatKeys {
  const float* keys;
  int64_t any_dim;

  [[gnu::always_inline]] int64_t dim() const { return known > 0 ? known : any_dim; }
  [[gnu::always_inline]] FloatKeys from(int64_t key) const { return {keys + key * dim(), any_dim}; }
  /// Columns [d, d + 16) of a key, of which `left` exist.
  [[gnu::always_inline]] Vec columns(int64_t key, int64_t d, int64_t left) const {
    const float* const p = keys + key * dim() + d;
    return left >= kLanes ? load(p) : load_first(p, left);
  }
};

/// Keys as the cache stores them, decoded on their way into registers.
template <int64_t known>
struct Nvfp4Keys {
  const uint8_t* codes;
  const uint8_t* scales;
  const float* table;
  int64_t any_dim;

  [[gnu::always_inline]] int64_t dim() const { return known > 0 ? known : any_dim; }
  [[gnu::always_inline]] Nvfp4Keys from(int64_t key) const {
    return {codes + key * dim() / 2, scales + key * dim() / kLanes, table, any_dim};
  }
  [[gnu::always_inline]] Vec columns(int64_t key, int64_t d, int64_t /*left*/) const {
    const int64_t group = (key * dim() + d) / kLanes;
    return lookup_codes(table + int64_t{scales[group]} * kLanes, codes + group * (kLanes / 2));
  }
};

/// Columns [d, d + 16) of K keys against four rows; `left` of them exist.
template <int K, typename Keys>
[[gnu::always_inline]] inline void add_columns(const float* const (&rows)[kTile], const Keys& keys,
                                               int64_t d, int64_t left, Vec (&tile)[K][kTile]) {
  Vec row[kTile];
  WINNOW_UNROLL
  for (int r = 0; r < kTile; ++r) {
    row[r] = left >= kLanes ? load(rows[r] + d) : load_first(rows[r] + d, left);
  }
  WINNOW_UNROLL
  for (int k = 0; k < K; ++k) {
    const Vec key = keys.columns(k, d, left);
    WINNOW_UNROLL
    for (int r = 0; r < kTile; ++r) tile[k][r] = fma(row[r], key, tile[k][r]);
  }
}

/// Sixteen sums of the first four keys: sums[4 · key + row].
template <typename Keys>
[[gnu::always_inline]] inline void multiply_tile(const float* const (&rows)[kTile],
                                                 const Keys& keys, Vec (&sums)[kTile * kTile]) {
  const int64_t dim = keys.dim();
  // Fewer registers: fewer keys at a time.
  constexpr int kKeys = kRegisters < 32 ? 1 : kTile;
  WINNOW_UNROLL
  for (int first = 0; first < kTile; first += kKeys) {
    Vec tile[kKeys][kTile];
    WINNOW_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      WINNOW_UNROLL
      for (int r = 0; r < kTile; ++r) tile[k][r] = zero();
    }
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      add_columns(rows, keys.from(first), d, kLanes, tile);
    }
    if (d < dim) add_columns(rows, keys.from(first), d, dim - d, tile);
    WINNOW_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      WINNOW_UNROLL
      for (int r = 0; r < kTile; ++r) sums[kTile * (first + k) + r] = tile[k][r];
    }
  }
}

template <typename Keys>
float dot(const float* row, const Keys& keys, int64_t key) {
  const int64_t dim = keys.dim();
  Vec sum = zero();
  for (int64_t d = 0; d < dim; d += kLanes) {
    sum = fma(load_first(row + d, dim - d), keys.columns(key, d, dim - d), sum);
  }
  return sum_lanes(sum);
}

template <typename Keys>
void best_of_tile(const float* const (&rows)[kTile], int num_rows, const Keys& keys,
                  int64_t num_keys, float* best) {
  Vec maximum = broadcast(-__builtin_inff());
  int64_t k = 0;
  for (; k + kTile <= num_keys; k += kTile) {
    Vec sums[kTile * kTile];
    multiply_tile(rows, keys.from(k), sums);
    maximum = max(join_sixteen(sums), maximum);
  }
  // Lanes 4r … 4r + 3 hold row r's best of every fourth key.
  alignas(64) float lanes[kLanes];
  store(lanes, maximum);
  for (int r = 0; r < num_rows; ++r) {
    for (int i = 0; i < kTile; ++i) {
      if (lanes[kTile * r + i] > best[r]) best[r] = lanes[kTile * r + i];
    }
    for (int64_t rest = k; rest < num_keys; ++rest) {
      const float score = dot(rows[r], keys, rest);
      if (score > best[r]) best[r] = score;
    }
  }
}

template <typename Keys>
void best_of_all(const float* rows, int64_t num_rows, const Keys& keys, int64_t num_keys,
                 float* best) {
  for (int64_t first = 0; first < num_rows; first += kTile) {
    const int count = num_rows - first < kTile ? static_cast<int>(num_rows - first) : kTile;
    const float* tile[kTile];
    for (int r = 0; r < kTile; ++r) tile[r] = rows + (first + (r < count ? r : 0)) * keys.dim();
    best_of_tile(tile, count, keys, num_keys, best + first);
  }
}

void best_scores(const float* rows, int64_t num_rows, const float* keys, int64_t num_keys,
                 int64_t dim, float* best) {
  if (dim == kUsualDim) {
    best_of_all(rows, num_rows, FloatKeys<kUsualDim>{keys, dim}, num_keys, best);
  } else {
    best_of_all(rows, num_rows, FloatKeys<0>{keys, dim}, num_keys, best);
  }
}

void best_nvfp4_scores(const float* rows, int64_t num_rows, const Nvfp4Plane& keys, float* best) {
  if (keys.dim == kUsualDim) {
    const Nvfp4Keys<kUsualDim> usual{keys.codes, keys.scales, keys.table, keys.dim};
    best_of_all(rows, num_rows, usual, keys.num_vectors, best);
  } else {
    const Nvfp4Keys<0> other{keys.codes, keys.scales, keys.table, keys.dim};
    best_of_all(rows, num_rows, other, keys.num_vectors, best);
  }
}

}  // namespace

extern const IndexKernels kIndexKernels = {.best_scores = best_scores,
                                           .best_nvfp4_scores = best_nvfp4_scores};

}  // namespace winnow::ops::WINNOW_ISA
