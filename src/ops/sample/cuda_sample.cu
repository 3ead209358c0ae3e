// One cluster of CTAs per drawn token: together they hold the row in shared memory, so that it is
// read once whatever is asked of it. Each step below ends in one value that all of them agree on.
//
// Tokens are ordered by their distance from the best one, an integer: how many floats lie between
// the logits, then the id. Top-k and top-p are then the same search: the smallest distance within
// which enough tokens, or enough mass, lie. It takes kBins intervals at a time, first of all
// distances, then within the interval that holds the answer, until that holds one token.
//
// Floor: the row's bytes once (800 KB at 200,064 tokens: 0.17 µs at 4.8 TB/s). What it really costs
// is a dozen cluster barriers and, without top-k, Philox and an exponential per token.
#include <cooperative_groups.h>

#include <limits>
#include <utility>

#include "base/exact_math.h"
#include "base/random.h"
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"
#include "ops/sample/sample.h"

namespace winnow::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kCluster = 16;  // CTAs of a draw: 8 would be portable, 16 are faster
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
__device__ std::uint32_t ordered(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}

__device__ float unordered(std::uint32_t bits) {
  return __uint_as_float(bits ^ ((bits >> 31) != 0 ? 0x80000000U : 0xFFFFFFFFU));
}

__device__ std::uint32_t pick(const Philox4& all, std::uint32_t j) {
  return j < 2 ? (j == 0 ? all[0] : all[1]) : (j == 2 ? all[2] : all[3]);
}

/// Of two finishing times (bits of positive doubles are in their order) and tokens.
__device__ Pair first_of(const Pair& a, const Pair& b) {
  const bool is_a = a.first != b.first ? a.first < b.first : a.second < b.second;
  return is_a ? a : b;
}

__device__ Pair exchange(const Pair& value, int distance) {
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
  template <bool kByMass>
  __device__ void fill_bins(std::uint64_t low, int shift, std::uint64_t within);
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

/// Brings the row here with banned tokens at -inf and finds its best token. False: there is none.
__device__ bool Drawing::load(bool& is_corrupt) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  constexpr std::uint64_t kBad = 1;
  constexpr std::uint64_t kLive = 2;  // a logit above -inf before bans
  const float* const row =
      params_.logits +
      static_cast<std::int64_t>(draw_.row - params_.first_row) * params_.vocab_size + first_;
  const std::uint32_t* const mask =
      draw_.mask < 0 ? nullptr : params_.masks + draw_.mask * ops::mask_words(params_.vocab_size);
  const bool is_aligned = params_.vocab_size % kGroup == 0;
  const int num_groups = (size_ + kGroup - 1) / kGroup;
  auto arrival = cluster_.barrier_arrive();  // all of the cluster must have begun before agree()
  std::uint64_t flags = 0;
  std::uint64_t best = 0;
#pragma unroll 4
  for (int g = static_cast<int>(threadIdx.x); g < num_groups; g += kThreads) {
    const int begin = g * kGroup;
    float x[kGroup];
    if (is_aligned) {
      *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(row + begin);
    } else {
      for (int j = 0; j < kGroup; ++j) x[j] = begin + j < size_ ? row[begin + j] : kMasked;
    }
    const auto token = static_cast<std::uint32_t>(first_ + begin);
    const std::uint32_t banned = mask == nullptr ? 0 : mask[token / 32] >> (token % 32);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (!(x[j] <= kLargest)) flags |= kBad;
      if (x[j] > kMasked) flags |= kLive;
      if ((banned >> j & 1U) != 0) x[j] = kMasked;
      x[j] += 0.0F;  // -0 becomes 0: they are equal, and so are their places in the order
      const std::uint64_t key = std::uint64_t{ordered(x[j])} << 32 | ~(token + j);
      best = key > best ? key : best;
    }
    *reinterpret_cast<float4*>(shared_.logits + begin) = *reinterpret_cast<const float4*>(x);
  }
  cluster_.barrier_wait(std::move(arrival));
  std::uint64_t peak = best;
  for (int d = 16; d > 0; d /= 2) {
    const std::uint64_t other = __shfl_xor_sync(0xFFFFFFFFU, peak, d);
    peak = other > peak ? other : peak;
  }
  if (threadIdx.x % 32 < kCluster) {
    const unsigned at = rank_ * kWarps + threadIdx.x / 32;
    *cluster_.map_shared_rank(&shared_.peaks[at], threadIdx.x % 32) = peak;
  }
  const Pair agreed = agree({best, flags}, [](const Pair& a, const Pair& b) {
    return Pair{a.first > b.first ? a.first : b.first, a.second | b.second};
  });
  is_corrupt = (agreed.second & kBad) != 0 || (agreed.second & kLive) == 0;
  argmax_ = static_cast<TokenId>(~static_cast<std::uint32_t>(agreed.first));
  max_ = unordered(static_cast<std::uint32_t>(agreed.first >> 32));
  return max_ > kMasked;
}

__device__ std::uint64_t Drawing::distance(float x, int i) const {
  return std::uint64_t{ordered(max_) - ordered(x)} << ops::kSampleIdBits |
         static_cast<std::uint32_t>(first_ + i);
}

__device__ float Drawing::weight(float x) const {
  return exp_weight((x - max_) * draw_.inverse_temperature);
}

/// As weight_mass() of engine/sample/candidates.h.
__device__ std::uint64_t Drawing::mass(float weight) {
  return static_cast<std::uint64_t>(static_cast<double>(weight) * 0x1p40);
}

/// What the leading tokens must have of `total` for top-p.
__device__ std::uint64_t Drawing::share(std::uint64_t total) const {
  return static_cast<std::uint64_t>(
      ceil(static_cast<double>(draw_.top_p) * static_cast<double>(total)));
}

__device__ std::uint64_t Drawing::total_mass(std::uint64_t within) {
  std::uint64_t sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
    const float x = shared_.logits[i];
    if (distance(x, i) <= within) sum += mass(weight(x));
  }
  return agree({sum, 0},
               [](const Pair& a, const Pair& b) {
                 return Pair{a.first + b.first, 0};
               })
      .first;
}

/// Tokens, and their mass, of each interval [low + b · 2^shift, low + (b + 1) · 2^shift).
template <bool kByMass>
__device__ void Drawing::fill_bins(std::uint64_t low, int shift, std::uint64_t within) {
  for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) {
    shared_.count[b] = 0;
    if (kByMass) shared_.mass[b] = 0;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
    const float x = shared_.logits[i];
    const std::uint64_t d = distance(x, i);
    const std::uint64_t bin = (d - low) >> shift;  // huge for d < low
    if (d > within || bin >= kBins) continue;
    atomicAdd(&shared_.count[bin], 1U);
    if (kByMass) {
      const std::uint64_t m = mass(weight(x));
      if (m > 0) atomicAdd(reinterpret_cast<unsigned long long*>(&shared_.mass[bin]), m);
    }
  }
  cluster_.sync();
}

/// The bin in which the measure of all bins up to it first reaches `need`.
template <bool kByMass>
__device__ void Drawing::find_bin(std::uint64_t need) {
  const int own = static_cast<int>(threadIdx.x) / kReaders;
  const int reader = static_cast<int>(threadIdx.x) % kReaders;
  const int bin = static_cast<int>(rank_) * kOwnBins + own;
  Pair sum{0, 0};  // measure, tokens
  for (int i = 0; i < 2; ++i) {
    const int peer = 2 * reader + i;
    const std::uint32_t count = *cluster_.map_shared_rank(&shared_.count[bin], peer);
    sum.first += kByMass ? *cluster_.map_shared_rank(&shared_.mass[bin], peer) : count;
    sum.second += count;
  }
  for (int d = kReaders / 2; d > 0; d /= 2) {
    const Pair other = exchange(sum, d);
    sum = {sum.first + other.first, sum.second + other.second};
  }
  if (reader == 0) {
    shared_.own[own] = sum.first;
    shared_.own_count[own] = static_cast<std::uint32_t>(sum.second);
  }
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x);
  std::uint64_t before = 0;  // measure of this share's bins before this lane's
  if (lane < 32) {
    std::uint64_t through = 0;
    for (int i = 0; i < kBinsPerLane; ++i) through += shared_.own[lane * kBinsPerLane + i];
    before = through;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint64_t other = __shfl_up_sync(0xFFFFFFFFU, through, d);
      if (lane >= d) through += other;
    }
    before = through - before;
    const std::uint64_t share = __shfl_sync(0xFFFFFFFFU, through, 31);
    if (lane < kCluster) {
      cluster_.map_shared_rank(&shared_.boxes[turn_][rank_], lane)->first = share;
    }
  }
  cluster_.sync();
  if (lane < 32) {
    for (unsigned i = 0; i < rank_; ++i) before += shared_.boxes[turn_][i].first;
    for (int i = 0; i < kBinsPerLane; ++i) {
      const int at = lane * kBinsPerLane + i;
      const std::uint64_t measure = shared_.own[at];
      if (before < need && need <= before + measure) {
        const bool is_whole = shared_.own_count[at] == 1 || (!kByMass && need == before + measure);
        for (int peer = 0; peer < kCluster; ++peer) {
          auto* const found = cluster_.map_shared_rank(&shared_.found, peer);
          found->bin = rank_ * kOwnBins + at;
          found->before = before;
          found->is_whole = is_whole ? 1 : 0;
        }
      }
      before += measure;
    }
  }
  turn_ ^= 1;
  cluster_.sync();
}

/// The smallest distance within which the tokens, or their mass, reach `need`, given that they do
/// `within` that one.
template <bool kByMass>
__device__ std::uint64_t Drawing::search(std::uint64_t within, std::uint64_t need) {
  constexpr int kBits = 32 + ops::kSampleIdBits;
  int shift = max(0, min(kBits, 64 - __clzll(static_cast<long long>(within))) - kBinBits);
  std::uint64_t low = 0;
  while (true) {
    fill_bins<kByMass>(low, shift, within);
    find_bin<kByMass>(need);
    low += shared_.found.bin << shift;
    need -= shared_.found.before;
    if (shift == 0 || shared_.found.is_whole != 0) {
      const std::uint64_t last = low + (std::uint64_t{1} << shift) - 1;
      return last < within ? last : within;
    }
    shift = max(0, shift - kBinBits);
  }
}

__device__ Philox4 Drawing::numbers(std::uint32_t group, std::uint32_t stream) const {
  return philox4x32(draw_.seed, {group, draw_.position, draw_.choice, stream});
}

__device__ double Drawing::finish_time(std::uint32_t token, float weight,
                                       std::uint32_t high) const {
  const std::uint32_t low = pick(numbers(token / kGroup, 1), token % kGroup);
  return -natural_log(uniform_open(high, low)) / static_cast<double>(weight);
}

/// draw_row() and draw_candidate() of engine/sample/draw.h: which tokens are tried in full differs,
/// the first to finish does not.
__device__ TokenId Drawing::race(std::uint64_t within) {
  constexpr double kMargin = 1.0 + 0x1p-20;  // more than what comparing in fp32 can be wrong by
  double best = std::numeric_limits<double>::infinity();
  std::uint32_t winner = 0xFFFFFFFFU;
  if (threadIdx.x == 0) {
    winner = static_cast<std::uint32_t>(argmax_);
    best = finish_time(winner, 1.0F, pick(numbers(winner / kGroup, 0), winner % kGroup));
    shared_.bound = __float_as_uint(static_cast<float>(best * kMargin));
  }
  __syncthreads();
  const int num_groups = (size_ + kGroup - 1) / kGroup;
  for (int g = static_cast<int>(threadIdx.x); g < num_groups; g += kThreads) {
    const int begin = g * kGroup;
    float x[kGroup];
    *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(shared_.logits + begin);
    float weights[kGroup];
    bool is_any = false;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      weights[j] = 0.0F;
      if (distance(x[j], begin + j) <= within) weights[j] = weight(x[j]);
      if (weights[j] < draw_.min_p) weights[j] = 0.0F;
      is_any |= weights[j] > 0.0F;
    }
    if (!is_any) continue;
    const auto token = static_cast<std::uint32_t>(first_ + begin);
    const Philox4 high = numbers(token / kGroup, 0);
    const float bound = __uint_as_float(*static_cast<volatile std::uint32_t*>(&shared_.bound));
    std::uint32_t hopeful = 0;
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const float hope = static_cast<float>(static_cast<std::int32_t>(~high[j] >> 8)) * 0x1p-24F;
      if (weights[j] > 0.0F && hope <= bound * weights[j]) hopeful |= 1U << j;
    }
    while (hopeful != 0) {
      const int j = __ffs(static_cast<int>(hopeful)) - 1;
      hopeful &= hopeful - 1;
      const float w =
          j < 2 ? (j == 0 ? weights[0] : weights[1]) : (j == 2 ? weights[2] : weights[3]);
      const double time = finish_time(token + j, w, pick(high, j));
      if (time < best || (time == best && token + j < winner)) {
        best = time;
        winner = token + j;
        atomicMin(&shared_.bound, __float_as_uint(static_cast<float>(time * kMargin)));
      }
    }
  }
  const Pair first =
      agree({static_cast<std::uint64_t>(__double_as_longlong(best)), winner}, first_of);
  return static_cast<TokenId>(first.second);
}

/// The distance of the count-th of the peaks, a distance within which at least `count` tokens lie.
__device__ std::uint64_t Drawing::peak(int count) {
  constexpr int kParts = kThreads / kPeaks;
  const int own = static_cast<int>(threadIdx.x) / kParts;
  const int part = static_cast<int>(threadIdx.x) % kParts;
  const std::uint64_t key = shared_.peaks[own];
  const std::uint64_t distance =
      key == 0 ? kAll
               : std::uint64_t{ordered(max_) - static_cast<std::uint32_t>(key >> 32)}
                         << ops::kSampleIdBits |
                     ~static_cast<std::uint32_t>(key);
  __syncthreads();
  if (part == 0) shared_.peaks[own] = distance;
  __syncthreads();
  int ahead = 0;
  for (int i = part; i < kPeaks; i += kParts) {
    const std::uint64_t other = shared_.peaks[i];
    ahead += other < distance || (other == distance && i < own) ? 1 : 0;
  }
  for (int d = kParts / 2; d > 0; d /= 2) ahead += __shfl_xor_sync(0xFFFFFFFFU, ahead, d);
  if (ahead == count - 1) shared_.found.bin = distance;
  __syncthreads();
  return shared_.found.bin;
}

/// Most draws with top-k or top-p want but a few tokens: those within the distance of a peak are
/// sorted and drawn from by the first CTA, which alone knows the token then. False: there are too
/// many of them, or not enough for top-p.
__device__ bool Drawing::draw_listed(std::uint32_t& token) {
  const bool has_top_k = draw_.top_k > 0 && draw_.top_k < params_.vocab_size;
  if (has_top_k && draw_.top_k > kMostListedTopK) return false;
  if (threadIdx.x == 0) shared_.num_listed = 0;
  const std::uint64_t within = peak(has_top_k ? draw_.top_k : kListedTopP);
  std::uint64_t row_mass = 0;
  std::uint64_t listed_mass = 0;
  for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
    const float x = shared_.logits[i];
    const std::uint64_t d = distance(x, i);
    const std::uint64_t m = has_top_k ? 0 : mass(weight(x));
    row_mass += m;
    if (d > within) continue;
    listed_mass += m;
    const std::uint32_t slot = atomicAdd(&shared_.num_listed, 1U);
    if (slot < kMostListed) shared_.list.own[slot] = d;
  }
  const auto add = [](const Pair& a, const Pair& b) {
    return Pair{a.first + b.first, a.second + b.second};
  };
  if (!has_top_k) {
    const Pair masses = agree({row_mass, listed_mass}, add);
    row_mass = masses.first;
    if (masses.second < share(row_mass)) return false;
  }
  __syncthreads();
  const std::uint32_t num_own = shared_.num_listed;
  const std::uint64_t num_listed = agree({threadIdx.x == 0 ? num_own : 0, 0}, add).first;
  if (num_listed > kMostListed) return false;
  std::uint64_t begin = 0;
  for (unsigned i = 0; i < rank_; ++i) begin += shared_.boxes[turn_ ^ 1][i].first;
  if (threadIdx.x < num_own) {
    *cluster_.map_shared_rank(&shared_.list.all[begin + threadIdx.x], 0) =
        shared_.list.own[threadIdx.x];
  }
  cluster_.sync();
  if (rank_ == 0) token = draw_sorted(static_cast<int>(num_listed), row_mass);
  return true;
}

/// From the tokens of list.all. `row_mass` is what top-p takes its share of without top-k.
__device__ std::uint32_t Drawing::draw_sorted(int num_listed, std::uint64_t row_mass) {
  const int own = static_cast<int>(threadIdx.x);
  if (own < num_listed) {
    const std::uint64_t distance = shared_.list.all[own];
    int ahead = 0;
    for (int i = 0; i < num_listed; ++i) ahead += shared_.list.all[i] < distance ? 1 : 0;
    shared_.list.own[ahead] = distance;
  }
  __syncthreads();
  const bool has_top_k = draw_.top_k > 0 && draw_.top_k < params_.vocab_size;
  std::uint32_t token = 0;
  float w = 0.0F;
  if (own < (has_top_k ? min(num_listed, draw_.top_k) : num_listed)) {
    const std::uint64_t distance = shared_.list.own[own];
    token = static_cast<std::uint32_t>(distance) & ((1U << ops::kSampleIdBits) - 1);
    w = weight(
        unordered(ordered(max_) - static_cast<std::uint32_t>(distance >> ops::kSampleIdBits)));
  }
  if (draw_.top_p < 1.0F) {
    // Masses through this token's warp, then of the warps before.
    std::uint64_t through = mass(w);
    const int lane = own % 32;
    for (int d = 1; d < 32; d *= 2) {
      const std::uint64_t other = __shfl_up_sync(0xFFFFFFFFU, through, d);
      if (lane >= d) through += other;
    }
    if (lane == 31) shared_.warps[own / 32].first = through;
    __syncthreads();
    std::uint64_t total = 0;
    for (int i = 0; i < kWarps; ++i) {
      if (i == own / 32) through += total;
      total += shared_.warps[i].first;
    }
    if (!has_top_k) total = row_mass;
    if (through - mass(w) >= share(total)) w = 0.0F;
  }
  if (w < draw_.min_p) w = 0.0F;
  double time = std::numeric_limits<double>::infinity();
  if (w > 0.0F) time = finish_time(token, w, pick(numbers(token / kGroup, 0), token % kGroup));
  return static_cast<std::uint32_t>(
      agree_in_block({static_cast<std::uint64_t>(__double_as_longlong(time)), token}, first_of)
          .second);
}

__device__ ops::Drawn Drawing::run() {
  bool is_corrupt = false;
  const bool is_any = load(is_corrupt);
  if (is_corrupt) return {.status = ops::DrawStatus::kCorruptLogits};
  if (!is_any) return {.status = ops::DrawStatus::kNothingAllowed};
  if (draw_.is_greedy != 0) return {.token = argmax_};
  const bool has_top_k = draw_.top_k > 0 && draw_.top_k < params_.vocab_size;
  std::uint32_t token = 0;
  if ((has_top_k || draw_.top_p < 1.0F) && draw_listed(token)) {
    return {.token = static_cast<TokenId>(token)};
  }
  std::uint64_t within = kAll;
  if (has_top_k) {
    within = search<false>(kAll, static_cast<std::uint64_t>(draw_.top_k));
  }
  if (draw_.top_p < 1.0F) {
    within = search<true>(within, share(total_mass(within)));
  }
  return {.token = race(within)};
}

__global__ void __launch_bounds__(kThreads, 2) sample_tokens(ops::SampleParams params) {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  const int i = static_cast<int>(blockIdx.x) / kCluster;
  const ops::Draw draw = params.draws[i];
  if (draw.row < 0) return;
  Drawing drawing(params, draw, *reinterpret_cast<Shared*>(shared_bytes));
  const ops::Drawn drawn = drawing.run();
  if (threadIdx.x == 0 && blockIdx.x % kCluster == 0) params.out[i] = drawn;
}

}  // namespace

void sample(const ops::OpContext& context, const ops::SampleParams& params) {
  if (params.num_draws == 0) return;
  const int slice = Drawing::slice_tokens(params.vocab_size);
  const std::size_t shared_bytes = sizeof(Shared) + static_cast<std::size_t>(slice) * sizeof(float);
  check(cudaFuncSetAttribute(sample_tokens, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        "cudaFuncSetAttribute");
  check(cudaFuncSetAttribute(sample_tokens, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "cudaFuncSetAttribute");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(params.num_draws * kCluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.cuda->stream();
  config.attrs = &cluster;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, sample_tokens, params), "sample");
}

}  // namespace winnow::cuda
