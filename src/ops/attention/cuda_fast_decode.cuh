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

/// (token, KV head) as every CTA of its cluster sees it: what is older than the launch before.
struct QuarterTask {
  std::int32_t position = 0;
  ops::SequenceSlice slice;
  int heads = 0;                // query heads of the KV head
  std::int64_t first_head = 0;  // of them, in rows of queries and outputs
};

__device__ __forceinline__ QuarterTask quarter_task(const AttentionDecodeArgs& args, int token,
                                                    int kv_head) {
  const int heads = args.shape.num_heads / args.shape.num_kv_heads;
  return {.position = args.batch.positions[token],
          .slice = args.batch.sequences[args.batch.sequence_of[token]],
          .heads = heads,
          .first_head = std::int64_t{token} * args.shape.num_heads + kv_head * heads};
}

/// One quarter of a list, an entry per lane, the same in every warp.
struct QuarterList {
  std::int32_t block = -1;
  std::int32_t row = 0;  // of the pool
  int count = 0;
};

/// Waits for the launch before, which wrote the list; false for a slice that is left alone.
__device__ __forceinline__ bool wait_for_list(const AttentionDecodeArgs& args,
                                              const QuarterTask& task, int token, int kv_head,
                                              int quarter, QuarterList& list) {
  const ops::AttentionShape& shape = args.shape;
  // The next launch only now: what it asks for before its own wait must not delay this list's
  // pages.
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int entries = quarter_entries(shape.top_k_blocks);
  const int entry = quarter * entries + lane;
  if (lane < entries && entry < shape.top_k_blocks) {
    list.block =
        args.blocks[(std::int64_t{token} * shape.num_index_heads + kv_head) * shape.top_k_blocks +
                    entry];
  }
  // After the load, which need not wait for that of the slice.
  if (task.slice.num_tokens > kAttentionDecodeTokens) return false;
  if (list.block >= 0) list.row = task.slice.block_table[list.block];
  list.count = __popc(__ballot_sync(0xFFFFFFFFU, list.block >= 0));
  return true;
}

/// One quarter of the list of (token, kv_head), by a CTA of kPartThreads: leaves its outputs,
/// maximum and sum in shared memory, behind a barrier unless the quarter is empty. False for a
/// slice that is left alone.
template <CacheFormat F>
__device__ __forceinline__ bool attend_quarter(const AttentionDecodeArgs& args,
                                               PartShared<F>& shared, int token, int kv_head,
                                               int quarter) {
  const QuarterTask task = quarter_task(args, token, kv_head);
  PartAttention<F> part(args.planes, kv_head, task.position, softmax_factor(args.scale), shared);
  // The launch before began after queries and pages were written.
  part.stage_queries(args.q + task.first_head * kFastDim, task.heads);
  QuarterList list;
  if (!wait_for_list(args, task, token, kv_head, quarter, list)) return false;
  if (list.count > 0) {
    part.prefetch(list.row, list.count);
    __syncthreads();
    part.run(list.block, list.row, list.count);
  } else if (threadIdx.x < kPartHeads) {
    shared.maximum[threadIdx.x] = kNegativeInfinity;
  }
  return true;
}

/// Of one head and quarter: its softmax and four dims of its outputs.
struct QuarterPart {
  float maximum, sum;
  float4 values;
};

/// The quarters' parts, `part_of(i)`, merged in ascending order.
template <typename PartOf>
__device__ __forceinline__ float4 merge_parts(float factor, const PartOf& part_of) {
  QuarterPart parts[kQuarters];
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) parts[i] = part_of(i);
  MergedSoftmax merged;
  float4 out{};
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) {
    const auto& [maximum, sum, values] = parts[i];
    if (maximum == kNegativeInfinity) continue;
    float a, b;
    merged.add(maximum, sum, factor, a, b);
    out.x = __fmaf_rn(values.x, b, __fmul_rn(out.x, a));
    out.y = __fmaf_rn(values.y, b, __fmul_rn(out.y, a));
    out.z = __fmaf_rn(values.z, b, __fmul_rn(out.z, a));
    out.w = __fmaf_rn(values.w, b, __fmul_rn(out.w, a));
  }
  const float normalizer = merged.normalizer();
  return {out.x * normalizer, out.y * normalizer, out.z * normalizer, out.w * normalizer};
}

/// A quarter of the dims of (token, kv_head): the quarters' parts merged in ascending order.
/// `shared_of(i)` is the PartShared of quarter i.
template <CacheFormat F, typename SharedOf>
__device__ __forceinline__ void merge_quarters(const AttentionDecodeArgs& args, int token,
                                               int kv_head, int quarter,
                                               const SharedOf& shared_of) {
  const int heads = args.shape.num_heads / args.shape.num_kv_heads;
  const std::int64_t first_head = std::int64_t{token} * args.shape.num_heads + kv_head * heads;
  constexpr int kDims = kFastDim / kQuarters;
  constexpr int kPieces = kPartHeads * kDims / 4;  // four dims of one head
  static_assert(kPieces <= kPartThreads);
  const int index = static_cast<int>(threadIdx.x);
  const int head = index / (kDims / 4);
  if (index >= kPieces || head >= heads) return;
  const int dim = quarter * kDims + index % (kDims / 4) * 4;
  *reinterpret_cast<float4*>(args.out + (first_head + head) * kFastDim + dim) =
      merge_parts(softmax_factor(args.scale), [&](int i) -> QuarterPart {
        const PartShared<F>& other = shared_of(i);
        return {other.maximum[head], other.sum[head],
                reinterpret_cast<const float4*>(other.values)[(head * kFastDim + dim) / 4]};
      });
}

}  // namespace winnow::cuda
