// Sparse attention of decode and verification steps.
//
// Floor: 36,864 bytes (nvfp4) of K and V for each (token, KV head, block): 256 tokens with
// independent selections are 302 MB, 71 us at 4.26 TB/s; one token is 1.2 MB, so only latency.
//
// A cluster of four CTAs serves one (token, KV head), each CTA a quarter of the list; the quarters
// are merged through distributed shared memory, each CTA a quarter of the dims.
#include "ops/attention/cuda_fast_decode.h"

#include <cooperative_groups.h>

#include "ops/attention/cuda_fast_part.cuh"
#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"

namespace winnow::cuda {
namespace {

constexpr int kQuarters = 4;

template <CacheFormat F>
__global__ __cluster_dims__(kQuarters, 1, 1)
    __launch_bounds__(kPartThreads,
                      3) void sm90_sparse_decode(const __grid_constant__ AttentionDecodeArgs args) {
  namespace cg = cooperative_groups;
  extern __shared__ __align__(128) std::byte bytes[];
  auto& shared = *reinterpret_cast<PartShared<F>*>(bytes);
  const ops::AttentionShape& shape = args.shape;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.z);
  const int quarter = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int32_t position = args.batch.positions[token];
  const ops::SequenceSlice slice = args.batch.sequences[args.batch.sequence_of[token]];
  const int heads = shape.num_heads / shape.num_kv_heads;
  const std::int64_t first_head = std::int64_t{token} * shape.num_heads + kv_head * heads;
  const float factor = softmax_factor(args.scale);

  PartAttention<F> part(args.planes, kv_head, position, factor, shared);
  if (slice.num_tokens > kAttentionDecodeTokens) return;
  part.stage_queries(args.q + first_head * kFastDim, heads);
  // The lists come from the launch before; that one began after the queries and pages were written.
  ptx::griddepcontrol_wait();
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

  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
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
      const PartShared<F>& other = *cg::this_cluster().map_shared_rank(&shared, i);
      maxima[i] = other.maximum[head];
      sums[i] = other.sum[head];
      parts[i] = reinterpret_cast<const float4*>(other.values)[(head * kFastDim + dim) / 4];
    }
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
    *reinterpret_cast<float4*>(args.out + (first_head + head) * kFastDim + dim) =
        float4{out.x * normalizer, out.y * normalizer, out.z * normalizer, out.w * normalizer};
  }
  // The others may still read this CTA's part; a thread that arrives has stored what it read.
  ptx::barrier_cluster_arrive_relaxed();
  ptx::barrier_cluster_wait();
}

template <CacheFormat F>
void launch(const AttentionDecodeArgs& args, CUstream_st* stream) {
  constexpr std::size_t kBytes = sizeof(PartShared<F>);
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = sm90_sparse_decode<F>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "cudaFuncSetAttribute");
  const dim3 grid(kQuarters, static_cast<unsigned>(args.shape.num_kv_heads),
                  static_cast<unsigned>(args.batch.num_tokens));
  launch_overlapping(kernel, {.grid = grid, .block = dim3(kPartThreads), .shared_bytes = kBytes},
                     stream, args, "sm90_sparse_decode");
}

}  // namespace

bool covers_attention_decode(const ops::AttentionShape& shape, const CachePlanes& planes) {
  return has_cache_format(planes.k.dtype) && planes.v.dtype == planes.k.dtype &&
         shape.head_dim == kFastDim && planes.block_tokens == kFastBlockTokens &&
         shape.num_heads % shape.num_kv_heads == 0 &&
         shape.num_heads / shape.num_kv_heads <= kPartHeads && shape.top_k_blocks <= 16;
}

void launch_sparse_decode(const AttentionDecodeArgs& args, CUstream_st* stream) {
  if (args.batch.num_tokens == 0) return;
  switch (cache_format(args.planes.k.dtype, args.planes.mode)) {
    case CacheFormat::kNvfp4E4m3:
      return launch<CacheFormat::kNvfp4E4m3>(args, stream);
    case CacheFormat::kNvfp4Exact:
      return launch<CacheFormat::kNvfp4Exact>(args, stream);
    case CacheFormat::kFp8:
      return launch<CacheFormat::kFp8>(args, stream);
    case CacheFormat::kBf16:
      return launch<CacheFormat::kBf16>(args, stream);
  }
}

}  // namespace winnow::cuda
