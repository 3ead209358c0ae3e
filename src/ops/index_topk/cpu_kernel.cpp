// Index scores, lanes along dims as the contract's sixteen partial sums ask.
//
// Floor at 128 dims: eight vector multiply-adds for one (row, key), four cycles. A tile of four
// rows and four keys needs half a load for each, and its sixteen sums are joined by one
// transposition (30 shuffles, 15 additions for sixteen results) on ports that multiply-adds leave
// free.
#include "ops/index_topk/cpu_kernel.h"

#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

constexpr int kTile = 4;

/// Head size that the loops are compiled for; others go through the same code with a variable.
constexpr int64_t kUsualDim = 128;

/// Columns [d, d + 16) of K keys against four rows; `left` of them exist.
template <int K>
[[gnu::always_inline]] inline void add_columns(const float* const (&rows)[kTile], const float* keys,
                                               int64_t dim, int64_t d, int64_t left,
                                               Vec (&tile)[K][kTile]) {
  const auto load_columns = [&](const float* p) {
    return left >= kLanes ? load(p + d) : load_first(p + d, left);
  };
  Vec row[kTile];
  WINNOW_UNROLL
  for (int r = 0; r < kTile; ++r) row[r] = load_columns(rows[r]);
  WINNOW_UNROLL
  for (int k = 0; k < K; ++k) {
    const Vec key = load_columns(keys + k * dim);
    WINNOW_UNROLL
    for (int r = 0; r < kTile; ++r) tile[k][r] = fma(row[r], key, tile[k][r]);
  }
}

/// Sixteen sums: sums[4 · key + row].
template <int64_t known_dim>
[[gnu::always_inline]] inline void multiply_tile(const float* const (&rows)[kTile],
                                                 const float* keys, int64_t any_dim,
                                                 Vec (&sums)[kTile * kTile]) {
  const int64_t dim = known_dim > 0 ? known_dim : any_dim;
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
      add_columns(rows, keys + first * dim, dim, d, kLanes, tile);
    }
    if (d < dim) add_columns(rows, keys + first * dim, dim, d, dim - d, tile);
    WINNOW_UNROLL
    for (int k = 0; k < kKeys; ++k) {
      WINNOW_UNROLL
      for (int r = 0; r < kTile; ++r) sums[kTile * (first + k) + r] = tile[k][r];
    }
  }
}

float dot(const float* row, const float* key, int64_t dim) {
  Vec sum = zero();
  for (int64_t d = 0; d < dim; d += kLanes) {
    sum = fma(load_first(row + d, dim - d), load_first(key + d, dim - d), sum);
  }
  return sum_lanes(sum);
}

template <int64_t known_dim>
void best_of_tile(const float* const (&rows)[kTile], int num_rows, const float* keys,
                  int64_t num_keys, int64_t dim, float* best) {
  Vec maximum = broadcast(-__builtin_inff());
  int64_t k = 0;
  for (; k + kTile <= num_keys; k += kTile) {
    Vec sums[kTile * kTile];
    multiply_tile<known_dim>(rows, keys + k * dim, dim, sums);
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
      const float score = dot(rows[r], keys + rest * dim, dim);
      if (score > best[r]) best[r] = score;
    }
  }
}

void best_scores(const float* rows, int64_t num_rows, const float* keys, int64_t num_keys,
                 int64_t dim, float* best) {
  for (int64_t first = 0; first < num_rows; first += kTile) {
    const int count = num_rows - first < kTile ? static_cast<int>(num_rows - first) : kTile;
    const float* tile[kTile];
    for (int r = 0; r < kTile; ++r) tile[r] = rows + (first + (r < count ? r : 0)) * dim;
    if (dim == kUsualDim) {
      best_of_tile<kUsualDim>(tile, count, keys, num_keys, kUsualDim, best + first);
    } else {
      best_of_tile<0>(tile, count, keys, num_keys, dim, best + first);
    }
  }
}

}  // namespace

extern const IndexKernels kIndexKernels = {.best_scores = best_scores};

}  // namespace winnow::ops::WINNOW_ISA
