// Sparse attention of decode and verification steps.
//
// Floor: 36,864 bytes (nvfp4) of K and V for each (token, KV head, block): 256 tokens with
// independent selections are 302 MB, 71 us at 4.26 TB/s; one token is 1.2 MB, so only latency.
//
// A cluster of four CTAs serves one (token, KV head), each CTA a quarter of the list; the quarters
// are merged through distributed shared memory, each CTA a quarter of the dims. Here for any cache;
// cuda_fast_quarter.cuh is for nvfp4.
#pragma once

#include "ops/attention/cuda_fast_decode.h"
#include "ops/attention/cuda_fast_part.cuh"

namespace winnow::cuda {

inline constexpr int kQuarters = 4;

/// One quarter of the list of (token, kv_head), by a CTA of kPartThreads: leaves its outputs,
/// maximum and sum in shared memory, behind a barrier unless the quarter is empty. Waits for the
/// launch before. False for a slice that is left alone.
template <CacheFormat F>
__device__ __forceinline__ bool attend_quarter(const AttentionDecodeArgs& args,
                                               PartShared<F>& shared, int token, int kv_head,
                                               int quarter) {
  const ops::AttentionShape& shape = args.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t position = args.batch.positions[token];
  const ops::SequenceSlice slice = args.batch.sequences[args.batch.sequence_of[token]];
  const int heads = shape.num_heads / shape.num_kv_heads;
  const std::int64_t first_head = std::int64_t{token} * shape.num_heads + kv_head * heads;

  PartAttention<F> part(args.planes, kv_head, position, softmax_factor(args.scale), shared);
  part.stage_queries(args.q + first_head * kFastDim, heads);
  // The lists come from the launch before; that one began after the queries and pages were written.
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (slice.num_tokens > kAttentionDecodeTokens) return false;
  const int entries = quarter_entries(shape.top_k_blocks);
  const int entry = quarter * entries + lane;
  std::int32_t block = -1;
  if (lane < entries && entry < shape.top_k_blocks) {
    block =
        args.blocks[(std::int64_t{token} * shape.num_index_heads + kv_head) * shape.top_k_blocks +
                    entry];
  }
  const std::int32_t row = block >= 0 ? slice.block_table[block] : 0;
  const int count = __popc(__ballot_sync(0xFFFFFFFFU, block >= 0));
  if (count > 0) {
    part.prefetch(row, count);
    __syncthreads();
    part.run(block, row, count);
  } else if (threadIdx.x < kPartHeads) {
    shared.maximum[threadIdx.x] = kNegativeInfinity;
  }
  return true;
}

/// The quarters' parts of four dims of a head, merged in ascending order.
__device__ __forceinline__ float4 merge_parts(const float (&maxima)[kQuarters],
                                              const float (&sums)[kQuarters],
                                              const float4 (&parts)[kQuarters], float factor) {
  MergedSoftmax merged;
  float4 out{};
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) {
    if (maxima[i] == kNegativeInfinity) continue;
    float a, b;
    merged.add(maxima[i], sums[i], factor, a, b);
    out.x = __fmaf_rn(parts[i].x, b, __fmul_rn(out.x, a));
    out.y = __fmaf_rn(parts[i].y, b, __fmul_rn(out.y, a));
    out.z = __fmaf_rn(parts[i].z, b, __fmul_rn(out.z, a));
    out.w = __fmaf_rn(parts[i].w, b, __fmul_rn(out.w, a));
  }
  const float normalizer = merged.normalizer();
  return {out.x * normalizer, out.y * normalizer, out.z * normalizer, out.w * normalizer};
}

/// A quarter of the dims of (token, kv_head): the quarters' parts merged in ascending order.
/// `part_of(i)` is the PartShared of quarter i.
template <CacheFormat F, typename PartOf>
__device__ __forceinline__ void merge_quarters(const AttentionDecodeArgs& args, int token,
                                               int kv_head, int quarter, const PartOf& part_of) {
  const ops::AttentionShape& shape = args.shape;
  const int heads = shape.num_heads / shape.num_kv_heads;
  const std::int64_t first_head = std::int64_t{token} * shape.num_heads + kv_head * heads;
  const float factor = softmax_factor(args.scale);
  constexpr int kDims = kFastDim / kQuarters;
  constexpr int kPieces = kPartHeads * kDims / 4;  // four dims of one head
  static_assert(kPieces <= kPartThreads);
  const int index = static_cast<int>(threadIdx.x);
  const int head = index / (kDims / 4);
  if (index < kPieces && head < heads) {
    const int dim = quarter * kDims + index % (kDims / 4) * 4;
    float maxima[kQuarters], sums[kQuarters];
    float4 parts[kQuarters];
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) {
      const PartShared<F>& other = part_of(i);
      maxima[i] = other.maximum[head];
      sums[i] = other.sum[head];
      parts[i] = reinterpret_cast<const float4*>(other.values)[(head * kFastDim + dim) / 4];
    }
    *reinterpret_cast<float4*>(args.out + (first_head + head) * kFastDim + dim) =
        merge_parts(maxima, sums, parts, factor);
  }
}

}  // namespace winnow::cuda
