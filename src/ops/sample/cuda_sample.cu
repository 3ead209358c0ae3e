// One cluster of CTAs per drawn token: together they hold the row in shared memory, so that it is
// read once whatever is asked of it. Each step below ends in one value that all of them agree on.
//
// Floor: the row's bytes once (800 KB at 200,064 tokens: 0.17 us at 4.8 TB/s). What it really costs
// is a dozen cluster barriers and, without top-k, Philox and an exponential per token. Figures:
// docs/performance.md.
#include <limits>
#include <utility>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"
#include "ops/sample/cuda_drawing.cuh"
#include "ops/sample/cuda_search.cuh"
#include "ops/sample/cuda_shortlist.cuh"

namespace winnow::cuda {
namespace drawing {

/// Brings the row here with banned tokens at -inf and finds its best token. False: there is none.
__device__ inline bool Drawing::load(bool& is_corrupt) {
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

/// draw_row() and draw_candidate() of engine/sample/draw.h: which tokens are tried in full differs,
/// the first to finish does not.
__device__ inline TokenId Drawing::race(std::uint64_t within) {
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

__device__ inline ops::Drawn Drawing::run() {
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

}  // namespace drawing

namespace {

using drawing::Drawing;
using drawing::kCluster;
using drawing::kThreads;
using drawing::Shared;

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
