// Attention over every block up to the query's own (M3's first layers), for decode and
// verification.
//
// Floor: K and V of the context once per token, 576 bytes a position (nvfp4): 302 MB or 71 us at
// 512K.
//
// The context is cut in runs of kDenseRunBlocks; a CTA takes every n-th run of one (token, KV head)
// and writes its part; a second launch merges the parts in ascending order. (Merging inside a CTA
// would make the order depend on the number of CTAs.)
#include <algorithm>

#include "ops/attention/cuda_fast_decode.h"
#include "ops/attention/cuda_fast_part.cuh"
#include "ops/cuda/check.h"

namespace winnow::cuda {
namespace {

constexpr int kCtasPerMultiprocessor = 3;

/// Parts of one (token, KV head): outputs [runs][16][128], maxima and sums [runs][16] each.
struct Parts {
  float* outputs = nullptr;
  float* maxima = nullptr;
  float* sums = nullptr;
};

constexpr std::int64_t part_floats(std::int64_t runs) { return runs * kPartHeads * (kFastDim + 2); }

__host__ __device__ inline Parts parts_of(float* scratch, std::int64_t runs, std::int64_t index) {
  float* const outputs = scratch + index * part_floats(runs);
  float* const maxima = outputs + runs * kPartHeads * kFastDim;
  return {.outputs = outputs, .maxima = maxima, .sums = maxima + runs * kPartHeads};
}

struct DenseProblem {
  AttentionDecodeArgs args;
  std::int32_t first_token = 0;  // of this launch
  std::int32_t max_runs = 0;
  float* scratch = nullptr;  // parts of [tokens of this launch][kv heads]
};

__device__ __forceinline__ std::int32_t runs_at(std::int32_t position) {
  return position / (kFastBlockTokens * kDenseRunBlocks) + 1;
}

template <CacheFormat F>
__global__ __launch_bounds__(kPartThreads, 3) void sm90_dense_decode(
    const __grid_constant__ DenseProblem problem) {
  extern __shared__ __align__(128) std::byte bytes[];
  auto& shared = *reinterpret_cast<PartShared<F>*>(bytes);
  const AttentionDecodeArgs& args = problem.args;
  const ops::AttentionShape& shape = args.shape;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int token = problem.first_token + static_cast<int>(blockIdx.z);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ops::SequenceSlice& slice = args.batch.sequences[args.batch.sequence_of[token]];
  if (slice.num_tokens > kAttentionDecodeTokens) return;
  const std::int32_t position = args.batch.positions[token];
  const std::int32_t num_runs = runs_at(position);
  auto run = static_cast<std::int32_t>(blockIdx.x);
  if (run >= num_runs) return;

  const int heads = shape.num_heads / shape.num_kv_heads;
  const std::int64_t first_head = std::int64_t{token} * shape.num_heads + kv_head * heads;
  const Parts parts = parts_of(problem.scratch, problem.max_runs,
                               std::int64_t{blockIdx.z} * shape.num_kv_heads + kv_head);
  PartAttention<F> part(args.planes, kv_head, position, softmax_factor(args.scale), shared);
  part.stage_queries(args.q + first_head * kFastDim, heads);
  __syncthreads();
  for (; run < num_runs; run += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t block = run * kDenseRunBlocks + lane;
    const std::int32_t last = position / kFastBlockTokens;
    const std::int32_t count = min(kDenseRunBlocks, last - run * kDenseRunBlocks + 1);
    const std::int32_t row = lane < count ? slice.block_table[block] : 0;
    part.prefetch(row, count);
    part.run(block, row, count);
    const auto* const outputs = reinterpret_cast<const float4*>(shared.values);
    auto* const target =
        reinterpret_cast<float4*>(parts.outputs + std::int64_t{run} * kPartHeads * kFastDim);
    for (int i = static_cast<int>(threadIdx.x); i < kPartHeads * kFastDim / 4; i += kPartThreads) {
      target[i] = outputs[i];
    }
    if (threadIdx.x < kPartHeads) {
      parts.maxima[run * kPartHeads + static_cast<int>(threadIdx.x)] = shared.maximum[threadIdx.x];
      parts.sums[run * kPartHeads + static_cast<int>(threadIdx.x)] = shared.sum[threadIdx.x];
    }
    __syncthreads();
  }
}

/// One CTA per (query head, token), one thread per dim.
__global__ __launch_bounds__(kFastDim) void sm90_dense_merge(
    const __grid_constant__ DenseProblem problem) {
  const AttentionDecodeArgs& args = problem.args;
  const ops::AttentionShape& shape = args.shape;
  const int heads = shape.num_heads / shape.num_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) / heads;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int token = problem.first_token + static_cast<int>(blockIdx.y);
  if (args.batch.sequences[args.batch.sequence_of[token]].num_tokens > kAttentionDecodeTokens) {
    return;
  }
  const std::int32_t num_runs = runs_at(args.batch.positions[token]);
  const Parts parts = parts_of(problem.scratch, problem.max_runs,
                               std::int64_t{blockIdx.y} * shape.num_kv_heads + kv_head);
  const float factor = softmax_factor(args.scale);
  constexpr int kAhead = 16;  // loads in flight
  MergedSoftmax merged;
  float out = 0.0F;
  for (std::int32_t first = 0; first < num_runs; first += kAhead) {
    float maxima[kAhead], sums[kAhead], outputs[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t row = std::int64_t{min(first + i, num_runs - 1)} * kPartHeads + head;
      maxima[i] = parts.maxima[row];
      sums[i] = parts.sums[row];
      outputs[i] = parts.outputs[row * kFastDim + threadIdx.x];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= num_runs || maxima[i] == kNegativeInfinity) continue;
      float a, b;
      merged.add(maxima[i], sums[i], factor, a, b);
      out = __fmaf_rn(outputs[i], b, __fmul_rn(out, a));
    }
  }
  const std::int64_t row = std::int64_t{token} * shape.num_heads + blockIdx.x;
  args.out[row * kFastDim + threadIdx.x] = out * merged.normalizer();
}

std::int32_t max_runs_of(std::int32_t num_positions) {
  constexpr std::int32_t kRunTokens = kFastBlockTokens * kDenseRunBlocks;
  return (num_positions + kRunTokens - 1) / kRunTokens;
}

template <CacheFormat F>
void launch(const DenseProblem& problem, std::int32_t num_tokens, int num_multiprocessors,
            CUstream_st* stream) {
  constexpr std::size_t kBytes = sizeof(PartShared<F>);
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = sm90_dense_decode<F>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "cudaFuncSetAttribute");
  const ops::AttentionShape& shape = problem.args.shape;
  const int pairs = num_tokens * shape.num_kv_heads;
  const int wanted = (kCtasPerMultiprocessor * num_multiprocessors + pairs - 1) / pairs;
  const dim3 grid(static_cast<unsigned>(std::clamp(wanted, 1, problem.max_runs)),
                  static_cast<unsigned>(shape.num_kv_heads), static_cast<unsigned>(num_tokens));
  kernel<<<grid, kPartThreads, kBytes, stream>>>(problem);
  check_launch("sm90_dense_decode");
  sm90_dense_merge<<<dim3(static_cast<unsigned>(shape.num_heads),
                          static_cast<unsigned>(num_tokens)),
                     kFastDim, 0, stream>>>(problem);
  check_launch("sm90_dense_merge");
}

}  // namespace

std::int64_t dense_decode_scratch_bytes(const AttentionDecodeArgs& args,
                                        std::int32_t num_positions) {
  const std::int64_t a_token = part_floats(max_runs_of(num_positions)) * args.shape.num_kv_heads *
                               static_cast<std::int64_t>(sizeof(float));
  constexpr std::int64_t kEnough = std::int64_t{128} << 20;
  return std::max(a_token, std::min(a_token * args.batch.num_tokens, kEnough));
}

void launch_dense_decode(const AttentionDecodeArgs& args, std::int32_t num_positions,
                         int num_multiprocessors, std::byte* scratch, CUstream_st* stream) {
  DenseProblem problem{.args = args,
                       .max_runs = max_runs_of(num_positions),
                       .scratch = reinterpret_cast<float*>(scratch)};
  const std::int64_t a_token = part_floats(problem.max_runs) * args.shape.num_kv_heads *
                               static_cast<std::int64_t>(sizeof(float));
  const auto chunk = static_cast<std::int32_t>(
      std::min<std::int64_t>(dense_decode_scratch_bytes(args, num_positions) / a_token, 65535));
  for (; problem.first_token < args.batch.num_tokens; problem.first_token += chunk) {
    const std::int32_t count = std::min(chunk, args.batch.num_tokens - problem.first_token);
    with_cache_format(cache_format(args.planes.k.dtype, args.planes.mode), [&]<CacheFormat F>() {
      launch<F>(problem, count, num_multiprocessors, stream);
    });
  }
}

}  // namespace winnow::cuda
