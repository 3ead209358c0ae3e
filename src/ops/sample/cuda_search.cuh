// Top-k and top-p of any size: the smallest distance within which enough tokens, or enough mass,
// lie. The search takes kBins intervals at a time, first of all distances, then within the interval
// that holds the answer, until that holds one token.
#pragma once

#include "ops/sample/cuda_drawing.cuh"

namespace winnow::cuda::drawing {

__device__ inline std::uint64_t Drawing::total_mass(std::uint64_t within) {
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

/// Tokens, and their mass, of each bin: bin_of(distance, logit) of those within.
template <bool kByMass, typename BinOf>
__device__ void Drawing::fill_bins(std::uint64_t within, BinOf bin_of) {
  for (int b = static_cast<int>(threadIdx.x); b < kBins; b += kThreads) {
    shared_.count[b] = 0;
    if (kByMass) shared_.mass[b] = 0;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
    const float x = shared_.logits[i];
    const std::uint64_t d = distance(x, i);
    if (d > within) continue;
    const std::uint64_t bin = bin_of(d, x);
    if (bin >= kBins) continue;
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
  const auto shift_for = [](std::uint64_t last) {
    return max(0, min(kBits, 64 - __clzll(static_cast<long long>(last))) - kBinBits);
  };
  std::uint64_t low = 0;
  if (kByMass) {
    // Intervals of equal width in (max - logit) / T first: floats crowd the tokens into few bins.
    // Masses end at 2^-40. Rounding never turns the order of two logits round.
    const float scale = static_cast<float>(kBins) / 28.0F;
    const auto bin_of = [&](std::uint64_t, float x) {
      const float bin = (max_ - x) * draw_.inverse_temperature * scale;
      return static_cast<std::uint64_t>(min(static_cast<int>(bin), kBins - 1));
    };
    fill_bins<kByMass>(within, bin_of);
    find_bin<kByMass>(need);
    need -= shared_.found.before;
    Pair ends{0, 0};  // ~ of the nearest token of the bin, the farthest
    for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
      const float x = shared_.logits[i];
      const std::uint64_t d = distance(x, i);
      if (d > within || bin_of(d, x) != shared_.found.bin) continue;
      ends = {~d > ends.first ? ~d : ends.first, d > ends.second ? d : ends.second};
    }
    const bool is_whole = shared_.found.is_whole != 0;
    ends = agree(ends, [](const Pair& a, const Pair& b) {
      return Pair{a.first > b.first ? a.first : b.first, a.second > b.second ? a.second : b.second};
    });
    low = ~ends.first;
    within = ends.second;
    if (is_whole) return within;
  }
  int shift = shift_for(within - low);
  while (true) {
    // Huge for a distance below `low`.
    fill_bins<kByMass>(within, [&](std::uint64_t d, float) { return (d - low) >> shift; });
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

}  // namespace winnow::cuda::drawing
