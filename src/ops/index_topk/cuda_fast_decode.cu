// The launches of the decode indexer (cuda_fast_decode.cuh, then cuda_fast_select.cuh).
#include "ops/index_topk/cuda_fast_decode.h"

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/index_topk/cuda_fast_decode.cuh"

namespace winnow::cuda {
namespace {

template <CacheFormat F, int kColumns, typename Tiles>
__global__ __launch_bounds__(32 * Tiles::kWarps, 1) void sm90_index_decode(
    const __grid_constant__ IndexDecodeProblem problem) {
  extern __shared__ __align__(128) std::byte bytes[];
  score_index_segments<F>(problem, *reinterpret_cast<IndexShared<kColumns, Tiles>*>(bytes),
                          static_cast<std::int32_t>(blockIdx.x),
                          static_cast<std::int32_t>(gridDim.x));
}

__global__ __launch_bounds__(kSelectThreads) void sm90_index_select(
    const __grid_constant__ IndexDecodeProblem problem) {
  __shared__ SelectShared shared;
  select_index_row(problem, shared, static_cast<std::int32_t>(blockIdx.x));
}

// Blocks of all sequences together from which wgmma pays.
constexpr std::int64_t kGroupBlocks = 4096;

int columns_of(const IndexDecodeArgs& args) {
  const int rows = std::min(args.max_slice_tokens, kIndexDecodeTokens) * args.shape.num_index_heads;
  return rows <= 8 ? 8 : rows <= 16 ? 16 : 32;
}

int groups_of(const IndexDecodeArgs& args) {
  const int rows = std::min(args.max_slice_tokens, kIndexDecodeTokens) * args.shape.num_index_heads;
  const int columns = columns_of(args);
  return std::max(1, (rows + columns - 1) / columns);
}

std::int32_t row_stride_of(const IndexDecodeArgs& args) {
  const std::int32_t blocks = (args.num_positions + kFastBlockTokens - 1) / kFastBlockTokens;
  return (blocks + 31) / 32 * 32;
}

template <CacheFormat F, int kColumns, typename Tiles>
void launch(const IndexDecodeProblem& problem, CUstream_st* stream) {
  constexpr std::size_t kBytes = sizeof(IndexShared<kColumns, Tiles>);
  static_assert(kBytes <= 227 * 1024);
  const auto kernel = sm90_index_decode<F, kColumns, Tiles>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "cudaFuncSetAttribute");
  launch_overlapping(kernel,
                     {.grid = dim3(static_cast<unsigned>(problem.args.num_multiprocessors)),
                      .block = dim3(32 * Tiles::kWarps),
                      .shared_bytes = kBytes},
                     stream, problem, "sm90_index_decode");
  const auto rows = problem.args.batch.num_tokens * problem.args.shape.num_index_heads;
  launch_overlapping(sm90_index_select,
                     {.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(kSelectThreads)},
                     stream, problem, "sm90_index_select");
}

template <CacheFormat F>
void launch(const IndexDecodeProblem& problem, CUstream_st* stream) {
  switch (columns_of(problem.args)) {
    case 8:
      return launch<F, 8, IndexWarpTiles<F, 8>>(problem, stream);
    case 16:
      return launch<F, 16, IndexWarpTiles<F, 16>>(problem, stream);
    default:
      if constexpr (is_nvfp4(F)) {
        if (problem.num_items * std::int64_t{problem.row_stride} >= kGroupBlocks) {
          return launch<F, 32, IndexGroupTiles<F>>(problem, stream);
        }
      }
      return launch<F, 32, IndexWarpTiles<F, 32>>(problem, stream);
  }
}

}  // namespace

bool covers_index_decode(const ops::AttentionShape& shape, const CachePlanes& planes) {
  return planes.has_index && has_cache_format(planes.index_k.dtype) &&
         shape.index_head_dim == kFastDim && planes.block_tokens == kFastBlockTokens &&
         shape.num_index_heads >= 1 && shape.num_index_heads <= 8 && shape.top_k_blocks <= 16 &&
         shape.local_blocks >= 1 && shape.init_blocks >= 0 &&
         shape.local_blocks + shape.init_blocks <= shape.top_k_blocks;
}

std::int64_t index_decode_scratch_bytes(const IndexDecodeArgs& args) {
  return std::int64_t{args.batch.num_tokens} * args.shape.num_index_heads * row_stride_of(args) *
         static_cast<std::int64_t>(sizeof(float));
}

void launch_index_decode(const IndexDecodeArgs& args, std::byte* scratch, CUstream_st* stream) {
  if (args.batch.num_sequences == 0 || args.batch.num_tokens == 0) return;
  const IndexDecodeProblem problem{.args = args,
                                   .groups = groups_of(args),
                                   .num_items = args.batch.num_sequences * groups_of(args),
                                   .row_stride = row_stride_of(args),
                                   .scores = reinterpret_cast<std::uint32_t*>(scratch)};
  with_cache_format(cache_format(args.planes.index_k.dtype, args.planes.mode),
                    [&]<CacheFormat F>() { launch<F>(problem, stream); });
}

}  // namespace winnow::cuda
