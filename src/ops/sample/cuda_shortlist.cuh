// Top-k and top-p of few tokens, as they mostly are: a list of the best ones, sorted by one CTA.
#pragma once

#include "ops/sample/cuda_drawing.cuh"

namespace winnow::cuda::drawing {

/// The distance of the count-th of the peaks, a distance within which at least `count` tokens lie.
__device__ inline std::uint64_t Drawing::peak(int count) {
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
__device__ inline bool Drawing::draw_listed(std::uint32_t& token) {
  const bool has_top_k = draw_.top_k > 0 && draw_.top_k < params_.vocab_size;
  if (has_top_k && draw_.top_k > kMostListedTopK) return false;
  if (threadIdx.x == 0) shared_.num_listed = 0;
  const std::uint64_t within = peak(has_top_k ? draw_.top_k : kListedTopP);
  const std::uint64_t floats = within >> ops::kSampleIdBits;
  const float lowest = floats > ordered(max_)
                           ? -std::numeric_limits<float>::infinity()
                           : unordered(ordered(max_) - static_cast<std::uint32_t>(floats));
  std::uint64_t row_mass = 0;
  std::uint64_t listed_mass = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < size_; i += kThreads) {
    const float x = shared_.logits[i];
    const std::uint64_t m = has_top_k ? 0 : mass(weight(x));
    row_mass += m;
    if (x < lowest) continue;  // nearly all
    const std::uint64_t d = distance(x, i);
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
__device__ inline std::uint32_t Drawing::draw_sorted(int num_listed, std::uint64_t row_mass) {
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

}  // namespace winnow::cuda::drawing
