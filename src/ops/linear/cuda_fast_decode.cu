// Linear for at most 64 tokens: the weights stream once from memory into A fragments of mma.sync.
// Floor: bytes of the weights over memory bandwidth.
//
// A block owns kRowTiles tiles of 16 rows and has one warp for each run of columns (cuda_fast.h),
// so the only exchange is the sum of four partial tiles in shared memory. A warp keeps kDepth
// chunks in flight in registers; five blocks of four warps on a multiprocessor then have some 80 KB
// on the way. x is small and read again by every block: it stays in the first-level cache, which
// the weights bypass.
#include <cuda_runtime.h>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda {
namespace linear_decode {

constexpr int kParts = 4;
constexpr int kThreads = 32 * kParts;
constexpr int kTokenTile = 8;
constexpr int kSumStride = 20;  // floats between tokens of a partial tile: no bank conflicts

struct DecodeParams {
  const std::byte* w;
  const std::byte* packed;
  const float* x;
  float* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  int num_tiles;
  int num_chunks;
  int rows;
  int num_tokens;
  float sum_scale;
  bool accumulate;
};

/// Choices of a kernel: tiles of 8 tokens, tiles of 16 rows for each block, chunks in flight for
/// each warp, and whether x is pack_decode_input()'s.
template <QuantScheme kSchemeOf, int kTokenTilesOf, int kRowTilesOf, int kDepthOf, bool kIsPackedOf>
struct TileConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kDepth = kDepthOf;
  static constexpr bool kIsPacked = kIsPackedOf;
  /// Whether a chunk of x is in registers one chunk ahead; many tokens leave no room for that.
  static constexpr bool kLoadsAhead = kTokenTiles <= 2;
};

/// One chunk of x for one lane, as B fragments of the chunk's four steps.
template <typename C>
struct InputChunk;

template <typename C>
requires(!C::kIsPacked) struct InputChunk<C> {
  float2 values[4][2];

  __device__ void load(const DecodeParams& p, int chunk, int lane) {
    const int token = lane / 4;
    const float* const at = p.x + token * p.x_stride + chunk * kChunkCols + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        values[step][half] = token < p.num_tokens
                                 ? *reinterpret_cast<const float2*>(at + 16 * step + 8 * half)
                                 : float2{0.0F, 0.0F};
      }
    }
  }
  __device__ uint2 step(int /*token_tile*/, int step) {
    return {ptx::cvt_rn_bf16x2(values[step][0].x, values[step][0].y),
            ptx::cvt_rn_bf16x2(values[step][1].x, values[step][1].y)};
  }
};

template <typename C>
requires(C::kIsPacked&& C::kLoadsAhead) struct InputChunk<C> {
  uint4 halves[C::kTokenTiles][2];

  __device__ void load(const DecodeParams& p, int chunk, int lane) {
    const auto* const at =
        reinterpret_cast<const uint4*>(p.packed) + std::int64_t{chunk} * C::kTokenTiles * 64 + lane;
#pragma unroll
    for (int tile = 0; tile < C::kTokenTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) halves[tile][half] = at[tile * 64 + half * 32];
    }
  }
  __device__ uint2 step(int token_tile, int step) {
    const uint4& half = halves[token_tile][step / 2];
    return step % 2 == 0 ? uint2{half.x, half.y} : uint2{half.z, half.w};
  }
};

template <typename C>
requires(!C::kLoadsAhead) struct InputChunk<C> {
  const uint4* at;
  uint4 half[C::kTokenTiles];

  __device__ void load(const DecodeParams& p, int chunk, int lane) {
    at =
        reinterpret_cast<const uint4*>(p.packed) + std::int64_t{chunk} * C::kTokenTiles * 64 + lane;
  }
  /// Tokens in ascending order, steps in ascending order.
  __device__ uint2 step(int token_tile, int step) {
    if (step % 2 == 0) {
      if (token_tile == 0) {
#pragma unroll
        for (int tile = 0; tile < C::kTokenTiles; ++tile)
          half[tile] = at[tile * 64 + step / 2 * 32];
      }
      return {half[token_tile].x, half[token_tile].y};
    }
    return {half[token_tile].z, half[token_tile].w};
  }
};

template <typename C>
__device__ void multiply_chunk(const LaneChunk<C::kScheme> (&weights)[C::kRowTiles],
                               InputChunk<C>& input,
                               float (&sums)[C::kRowTiles][C::kTokenTiles][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    std::uint32_t a[C::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) weights[r].fragment(step, a[r]);
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      const uint2 b = input.step(t, step);
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) ptx::mma_m16n8k16_bf16(sums[r][t], a[r], b.x, b.y);
    }
  }
}

/// Leaves the warp's partial tile in shared memory, [token][row].
template <typename C>
__device__ void store_partial(const float (&sums)[C::kTokenTiles][4], int lane, float* out) {
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
    float* const at = out + (t * kTokenTile + lane % 4 * 2) * kSumStride + lane / 4;
    at[0] = sums[t][0];
    at[kSumStride] = sums[t][1];
    at[8] = sums[t][2];
    at[kSumStride + 8] = sums[t][3];
  }
}

template <typename C>
constexpr int blocks_per_multiprocessor() {
  return C::kTokenTiles * C::kRowTiles <= 1 ? (C::kDepth <= 4 ? 5 : 4)
                                            : (C::kTokenTiles * C::kRowTiles <= 4 ? 4 : 3);
}

template <typename C>
__global__ void __launch_bounds__(kThreads, blocks_per_multiprocessor<C>())
    sm90_linear_decode(const DecodeParams p) {
  constexpr int kTokens = C::kTokenTiles * kTokenTile;
  constexpr int kPartial = kTokens * kSumStride;
  __shared__ float partials[C::kRowTiles][kParts][kPartial];

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first_tile = static_cast<int>(blockIdx.x) * C::kRowTiles;
  const int parts = k_parts(p.num_chunks);

  if (warp < parts) {
    constexpr int kBytes = static_cast<int>(chunk_bytes(C::kScheme));
    const int begin = part_begin(p.num_chunks, parts, warp);
    const int end = part_begin(p.num_chunks, parts, warp + 1);
    LaneSource sources[C::kRowTiles];
    LaneChunk<C::kScheme> weights[C::kDepth][C::kRowTiles];
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) {
      const std::int64_t tile = min(first_tile + r, p.num_tiles - 1);
      sources[r] = lane_source<C::kScheme>(p.w + (tile * p.num_chunks + begin) * kBytes, lane);
#pragma unroll
      for (int d = 0; d < C::kDepth; ++d) {
        if (begin + d < end) weights[d][r].load(sources[r], d * kBytes);
      }
    }
    ptx::griddepcontrol_wait();

    float sums[C::kRowTiles][C::kTokenTiles][4] = {};
    InputChunk<C> input;
    input.load(p, begin, lane);
    for (int first = begin; first < end; first += C::kDepth) {
#pragma unroll
      for (int d = 0; d < C::kDepth; ++d) {
        const int chunk = first + d;
        if (chunk >= end) break;
        InputChunk<C> next;
        if (chunk + 1 < end) next.load(p, chunk + 1, lane);
        multiply_chunk<C>(weights[d], input, sums);
        if (chunk + C::kDepth < end) {
#pragma unroll
          for (int r = 0; r < C::kRowTiles; ++r) {
            weights[d][r].load(sources[r], (C::kDepth + d) * kBytes);
          }
        }
        input = next;
      }
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) sources[r].advance(C::kDepth * kBytes);
    }
    ptx::griddepcontrol_launch_dependents();
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r) store_partial<C>(sums[r], lane, partials[r][warp]);
  } else {
    ptx::griddepcontrol_wait();
  }
  __syncthreads();

  for (int i = static_cast<int>(threadIdx.x); i < C::kRowTiles * kTokens * 16; i += kThreads) {
    const int row_in_tile = i % 16;
    const int r = i / 16 % C::kRowTiles;
    const int token = i / (16 * C::kRowTiles);
    const int row = (first_tile + r) * 16 + row_in_tile;
    if (token >= p.num_tokens || row >= p.rows) continue;
    const int at = token * kSumStride + row_in_tile;
    float sum = partials[r][0][at];
    for (int part = 1; part < parts; ++part) sum += partials[r][part][at];
    sum *= p.sum_scale;
    float* const y = p.y + token * p.y_stride + row;
    *y = p.accumulate ? *y + sum : sum;
  }
}

struct PackParams {
  const float* x;
  uint4* packed;
  std::int64_t x_stride;
  int num_tokens;
  int token_tiles;
  int num_chunks;
};

/// One thread for each lane of each half of a chunk's B fragments.
__global__ void __launch_bounds__(128) sm90_pack_decode_input(const PackParams p) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int index = static_cast<int>(blockIdx.x) * 128 + static_cast<int>(threadIdx.x);
  const int lane = index % 32;
  const int half = index / 32 % 2;
  const int tile = index / 64 % p.token_tiles;
  const int chunk = index / (64 * p.token_tiles);
  if (chunk >= p.num_chunks) return;
  const int token = tile * kTokenTile + lane / 4;
  uint4 out{};
  if (token < p.num_tokens) {
    const float* const at =
        p.x + token * p.x_stride + chunk * kChunkCols + half * 32 + lane % 4 * 2;
    out = {ptx::cvt_rn_bf16x2(at[0], at[1]), ptx::cvt_rn_bf16x2(at[8], at[9]),
           ptx::cvt_rn_bf16x2(at[16], at[17]), ptx::cvt_rn_bf16x2(at[24], at[25])};
  }
  p.packed[index] = out;
}

/// Tiles of tokens that kernels are built for.
int token_tiles(std::int64_t num_tokens) {
  for (const int tiles : {1, 2, 4}) {
    if (num_tokens <= tiles * kTokenTile) return tiles;
  }
  return 8;
}

template <typename C>
void launch(cudaStream_t stream, const DecodeParams& params) {
  const auto blocks = static_cast<unsigned>((params.num_tiles + C::kRowTiles - 1) / C::kRowTiles);
  launch_overlapping(sm90_linear_decode<C>, {.grid = dim3(blocks), .block = dim3(kThreads)}, stream,
                     params, "sm90_linear_decode");
}

template <QuantScheme S>
void launch_scheme(cudaStream_t stream, const DecodeParams& params) {
  // BF16 chunks are twice as long, so half as many are as many bytes in flight.
  constexpr int kDepth = S == QuantScheme::kBF16 ? 2 : S == QuantScheme::kMxfp8 ? 4 : 6;
  if (params.packed == nullptr) {
    launch<TileConfig<S, 1, 1, kDepth, false>>(stream, params);
    return;
  }
  switch (token_tiles(params.num_tokens)) {
    case 1:
      return launch<TileConfig<S, 1, 1, kDepth, true>>(stream, params);
    case 2:
      return launch<TileConfig<S, 2, 1, kDepth, true>>(stream, params);
    case 4:
      return launch<TileConfig<S, 4, 1, kDepth, true>>(stream, params);
    default:
      return launch<TileConfig<S, 8, 2, 2, true>>(stream, params);
  }
}

}  // namespace linear_decode

using namespace linear_decode;  // NOLINT(google-build-using-namespace): of this file

std::int64_t packed_decode_bytes(std::int64_t num_tokens, std::int64_t num_chunks) {
  return num_chunks * token_tiles(num_tokens) * 1024;
}

void pack_decode_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                       std::int64_t num_tokens, std::int64_t num_chunks, std::byte* packed) {
  const PackParams params{.x = x,
                          .packed = reinterpret_cast<uint4*>(packed),
                          .x_stride = x_stride,
                          .num_tokens = static_cast<int>(num_tokens),
                          .token_tiles = token_tiles(num_tokens),
                          .num_chunks = static_cast<int>(num_chunks)};
  const auto blocks = static_cast<unsigned>((num_chunks * params.token_tiles * 64 + 127) / 128);
  launch_overlapping(sm90_pack_decode_input, {.grid = dim3(blocks), .block = dim3(128)}, stream,
                     params, "sm90_pack_decode_input");
}

void decode_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed) {
  const DecodeParams params{.w = linear.w.data,
                            .packed = packed,
                            .x = linear.x,
                            .y = linear.y + linear.w.first_row,
                            .x_stride = linear.x_stride,
                            .y_stride = linear.y_stride,
                            .num_tiles = static_cast<int>(linear.w.num_tiles),
                            .num_chunks = static_cast<int>(linear.w.num_chunks),
                            .rows = static_cast<int>(linear.w.rows),
                            .num_tokens = static_cast<int>(linear.num_tokens),
                            .sum_scale = sum_scale(linear.w),
                            .accumulate = linear.accumulate};
  switch (linear.w.scheme) {
    case QuantScheme::kMxfp8:
      return launch_scheme<QuantScheme::kMxfp8>(stream, params);
    case QuantScheme::kBF16:
      return launch_scheme<QuantScheme::kBF16>(stream, params);
    case QuantScheme::kNvfp4:
      return launch_scheme<QuantScheme::kNvfp4>(stream, params);
    case QuantScheme::kF32:
      return;
  }
}

}  // namespace winnow::cuda
