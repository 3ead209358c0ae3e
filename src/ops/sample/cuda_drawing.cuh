// What one CTA of a cluster knows and does while a token is drawn; cuda_sample.cu is the whole of
// it.
//
// Tokens are ordered by their distance from the best one, an integer: how many floats lie between
// the logits, then the id.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>
#include <limits>

#include "base/exact_math.h"
#include "base/random.h"
#include "ops/sample/sample.h"

namespace winnow::cuda::drawing {

namespace cg = cooperative_groups;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 16;  // CTAs of a draw, 50 KB of M3's row each; only 8 were portable
constexpr int kGroup = 4;     // tokens that share one call of Philox
constexpr int kBins = 1024;   // intervals that one round of the search tells apart
constexpr int kBinBits = 10;
constexpr std::uint64_t kAll = ~std::uint64_t{0};  // a distance: every token is nearer

constexpr int kPeaks = kCluster * kWarps;  // best tokens, one of each warp's share of the row
constexpr int kMostListed = kThreads;      // tokens that one CTA finishes with by itself
// Of rows without structure that many peaks have about 350 and 180 tokens at or before them.
constexpr int kMostListedTopK = 192;
constexpr int kListedTopP = 128;

// Each CTA sums its share of the bins over the cluster, kReaders threads a bin, two CTAs a thread.
constexpr int kReaders = kCluster / 2;
constexpr int kOwnBins = kBins / kCluster;
constexpr int kBinsPerLane = kOwnBins / 32;
static_assert(kReaders * kOwnBins == kThreads && kOwnBins % 32 == 0 && kReaders <= 32);

/// Two integers that are reduced together.
struct Pair {
  std::uint64_t first;
  std::uint64_t second;
};

struct Shared {
  union {
    std::uint64_t mass[kBins];
    struct {
      std::uint64_t own[kMostListed];  // distances, in no order
      std::uint64_t all[kMostListed];  // of the cluster, in the first CTA
    } list;
  };
  std::uint32_t count[kBins];
  std::uint64_t peaks[kPeaks];        // keys of load(), then distances
  std::uint64_t own[kOwnBins];        // measures of this CTA's share of the bins
  std::uint32_t own_count[kOwnBins];  // tokens in them
  Pair warps[kWarps];
  Pair boxes[2][kCluster];  // what each CTA says; two, so that one may be read while one is filled
  struct {
    std::uint64_t bin;
    std::uint64_t before;  // measure of the bins before it
    std::uint32_t is_whole;
  } found;
  std::uint32_t num_listed;
  std::uint32_t bound;  // bits of a finishing time, in fp32 and rounded up, that some token beats
  alignas(16) float logits[];  // [slice]
};

/// A float's bits as an unsigned integer of the same order.
__device__ inline std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}

__device__ inline float unordered(std::uint32_t bits) {
  return __uint_as_float(bits ^ ((bits >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU));
}

__device__ inline std::uint32_t pick(const Philox4& all, std::uint32_t j) {
  return j < 2 ? (j == 0 ? all[0] : all[1]) : (j == 2 ? all[2] : all[3]);
}

/// Of two finishing times (bits of positive doubles are in their order) and tokens.
__device__ inline Pair first_of(const Pair& a, const Pair& b) {
  const bool is_a = a.first != b.first ? a.first < b.first : a.second < b.second;
  return is_a ? a : b;
}

__device__ inline Pair exchange(const Pair& value, int distance) {
  return {__shfl_xor_sync(0xFFFFFFFFU, value.first, distance),
          __shfl_xor_sync(0xFFFFFFFFU, value.second, distance)};
}

/// One CTA's part of a draw.
class Drawing {
 public:
  __device__ Drawing(const ops::SampleParams& params, const ops::Draw& draw, Shared& shared)
      : params_(params), draw_(draw), shared_(shared), rank_(cluster_.block_rank()) {
    const int slice = slice_tokens(params.vocab_size);
    first_ = static_cast<int>(rank_) * slice;
    size_ = max(0, min(slice, params.vocab_size - first_));
  }

  __host__ __device__ static int slice_tokens(std::int32_t vocab_size) {
    constexpr int kUnit = kCluster * kGroup;
    return (vocab_size + kUnit - 1) / kUnit * kGroup;
  }

  __device__ ops::Drawn run();

 private:
  template <typename Op>
  __device__ Pair agree_in_block(Pair value, Op op);
  template <typename Op>
  __device__ Pair agree(Pair value, Op op);
  __device__ bool load(bool& is_corrupt);
  __device__ std::uint64_t distance(float x, int i) const;
  __device__ float weight(float x) const;
  __device__ static std::uint64_t mass(float weight);
  template <bool kByMass>
  __device__ std::uint64_t search(std::uint64_t within, std::uint64_t need);
  template <bool kByMass, typename BinOf>
  __device__ void fill_bins(std::uint64_t within, BinOf bin_of);
  template <bool kByMass>
  __device__ void find_bin(std::uint64_t need);
  __device__ std::uint64_t share(std::uint64_t total) const;
  __device__ std::uint64_t total_mass(std::uint64_t within);
  __device__ double finish_time(std::uint32_t token, float weight, std::uint32_t high) const;
  __device__ Philox4 numbers(std::uint32_t group, std::uint32_t stream) const;
  __device__ TokenId race(std::uint64_t within);
  __device__ bool draw_listed(std::uint32_t& token);
  __device__ std::uint64_t peak(int count);
  __device__ std::uint32_t draw_sorted(int num_listed, std::uint64_t row_mass);

  const cg::cluster_group cluster_ = cg::this_cluster();
  const ops::SampleParams& params_;
  const ops::Draw& draw_;
  Shared& shared_;
  const unsigned rank_;
  int first_;         // token of logits[0]
  int size_;          // tokens of this CTA
  int turn_ = 0;      // the box that is filled next
  float max_ = 0.0F;  // of the row
  TokenId argmax_ = 0;
};

/// Every thread of the CTA gets op over the values of all of them; op is commutative and
/// associative.
template <typename Op>
__device__ Pair Drawing::agree_in_block(Pair value, Op op) {
  for (int d = 16; d > 0; d /= 2) value = op(value, exchange(value, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared_.warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared_.warps[threadIdx.x % kWarps];
  for (int d = kWarps / 2; d > 0; d /= 2) value = op(value, exchange(value, d));
  return value;
}

/// The same for every thread of the cluster.
template <typename Op>
__device__ Pair Drawing::agree(Pair value, Op op) {
  value = agree_in_block(value, op);
  if (threadIdx.x < kCluster) {
    *cluster_.map_shared_rank(&shared_.boxes[turn_][rank_], threadIdx.x) = value;
  }
  cluster_.sync();
  value = shared_.boxes[turn_][0];
  for (int i = 1; i < kCluster; ++i) value = op(value, shared_.boxes[turn_][i]);
  turn_ ^= 1;
  return value;
}

__device__ inline std::uint64_t Drawing::distance(float x, int i) const {
  return std::uint64_t{ordered(max_) - ordered(x)} << ops::kSampleIdBits |
         static_cast<std::uint32_t>(first_ + i);
}

__device__ inline float Drawing::weight(float x) const {
  return exp_weight((x - max_) * draw_.inverse_temperature);
}

/// As weight_mass() of engine/sample/candidates.h.
__device__ inline std::uint64_t Drawing::mass(float weight) {
  return static_cast<std::uint64_t>(static_cast<double>(weight) * 0x1p40);
}

/// What the leading tokens must have of `total` for top-p.
__device__ inline std::uint64_t Drawing::share(std::uint64_t total) const {
  return static_cast<std::uint64_t>(
      ceil(static_cast<double>(draw_.top_p) * static_cast<double>(total)));
}

__device__ inline Philox4 Drawing::numbers(std::uint32_t group, std::uint32_t stream) const {
  return philox4x32(draw_.seed, {group, draw_.position, draw_.choice, stream});
}

__device__ inline double Drawing::finish_time(std::uint32_t token, float weight,
                                              std::uint32_t high) const {
  const std::uint32_t low = pick(numbers(token / kGroup, 1), token % kGroup);
  return -natural_log(uniform_open(high, low)) / static_cast<double>(weight);
}

}  // namespace winnow::cuda::drawing
