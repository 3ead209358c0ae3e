// The launch of sparse decode attention (cuda_fast_decode.cuh).
#include "ops/attention/cuda_fast_decode.h"

#include <cooperative_groups.h>

#include "ops/attention/cuda_fast_decode.cuh"
#include "ops/attention/cuda_fast_quarter.cuh"
#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"

namespace winnow::cuda {
namespace {

constexpr int quarter_ctas(int early_values) { return early_values == 0 ? 5 : 4; }  // of an SM
constexpr int kFewCtas = 4 * 132;  // in all: latency counts, not their number on an SM

template <CacheFormat F, int kEarlyValues>
__global__ __cluster_dims__(kQuarters, 1, 1)
    __launch_bounds__(kQuarterThreads, quarter_ctas(kEarlyValues)) void sm90_sparse_decode_nvfp4(
        const __grid_constant__ AttentionDecodeArgs args) {
  extern __shared__ __align__(128) std::byte bytes[];
  attend_quarter_of_cluster(args, *reinterpret_cast<QuarterShared<F, kEarlyValues>*>(bytes),
                            static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y),
                            static_cast<int>(blockIdx.x));
}

template <CacheFormat F>
__global__ __cluster_dims__(kQuarters, 1, 1)
    __launch_bounds__(kPartThreads,
                      3) void sm90_sparse_decode(const __grid_constant__ AttentionDecodeArgs args) {
  extern __shared__ __align__(128) std::byte bytes[];
  auto& shared = *reinterpret_cast<PartShared<F>*>(bytes);
  const int kv_head = static_cast<int>(blockIdx.y);
  const int token = static_cast<int>(blockIdx.z);
  const int quarter = static_cast<int>(blockIdx.x);
  if (!attend_quarter(args, shared, token, kv_head, quarter)) return;
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  merge_quarters<F>(args, token, kv_head, quarter, [&](int i) -> const PartShared<F>& {
    return *cooperative_groups::this_cluster().map_shared_rank(&shared, i);
  });
  // The others may still read this CTA's part; a thread that arrives has stored what it read.
  ptx::barrier_cluster_arrive_relaxed();
  ptx::barrier_cluster_wait();
}

void launch(void (*kernel)(AttentionDecodeArgs), int num_threads, std::size_t shared_bytes,
            const AttentionDecodeArgs& args, CUstream_st* stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)),
        "cudaFuncSetAttribute");
  const dim3 grid(kQuarters, static_cast<unsigned>(args.shape.num_kv_heads),
                  static_cast<unsigned>(args.batch.num_tokens));
  launch_overlapping(kernel,
                     {.grid = grid,
                      .block = dim3(static_cast<unsigned>(num_threads)),
                      .shared_bytes = shared_bytes},
                     stream, args, "sm90_sparse_decode");
}

template <CacheFormat F, int kEarlyValues>
void launch_nvfp4(const AttentionDecodeArgs& args, CUstream_st* stream) {
  constexpr std::size_t kBytes = sizeof(QuarterShared<F, kEarlyValues>);
  static_assert(kBytes <= 228 * 1024 / quarter_ctas(kEarlyValues) - 1024);
  launch(sm90_sparse_decode_nvfp4<F, kEarlyValues>, kQuarterThreads, kBytes, args, stream);
}

template <CacheFormat F>
void launch(const AttentionDecodeArgs& args, CUstream_st* stream) {
  if constexpr (is_nvfp4(F)) {
    const std::int64_t ctas =
        std::int64_t{args.batch.num_tokens} * args.shape.num_kv_heads * kQuarters;
    ctas <= kFewCtas ? launch_nvfp4<F, 2>(args, stream) : launch_nvfp4<F, 0>(args, stream);
  } else {
    constexpr std::size_t kBytes = sizeof(PartShared<F>);
    static_assert(kBytes <= 227 * 1024);
    launch(sm90_sparse_decode<F>, kPartThreads, kBytes, args, stream);
  }
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
  with_cache_format(cache_format(args.planes.k.dtype, args.planes.mode),
                    [&]<CacheFormat F>() { launch<F>(args, stream); });
}

}  // namespace winnow::cuda
