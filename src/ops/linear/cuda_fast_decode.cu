// Linear for at most 64 tokens: the weights stream once from memory into A fragments of mma.sync.
// Floor: bytes of the weights over memory bandwidth.
//
// One block a multiprocessor owns kRowTiles tiles of 16 rows at a time and has one warp for each
// tile and run of columns (cuda_fast.h), so the only exchange is the sum of a tile's four partial
// sums in shared memory. A warp keeps kDepth chunks in flight in registers, across tiles, some 80
// KB a multiprocessor in all. x comes from shared memory in B order: whole for up to 8 tokens,
// converted by the block while its first weights are on the way; else in a ring that one more warp
// fills with bulk copies of what pack_decode_input() wrote, one slot for each run and chunk.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_decode_pack.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_fast_decode.cuh"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda {
namespace linear_decode {

/// Choices of a kernel: tiles of 16 rows of a block, tiles of 8 tokens, chunks in flight for each
/// warp, and slots of each run's ring of x (0: all of x is resident).
template <QuantScheme kSchemeOf, int kRowTilesOf, int kTokenTilesOf, int kDepthOf, int kSlotsOf>
struct DecodeConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr int kDepth = kDepthOf;
  static constexpr int kSlots = kSlotsOf;
  static constexpr bool kIsResident = kSlots == 0;
  static constexpr int kWorkers = kRowTiles * kParts;  // warps
  static constexpr int kThreads = 32 * kWorkers;
  static constexpr int kTokens = kTokenTiles * kTokenTile;
  static constexpr int kChunkBytes = static_cast<int>(chunk_bytes(kScheme));
  static constexpr int kSlotChunks = 8 / kTokenTiles;  // so that a copy is 8 KB
  static constexpr int kChunkInputBytes = kTokenTiles * kTileChunkBytes;
  static constexpr int kSlotBytes = kSlotChunks * kChunkInputBytes;
  static constexpr int kPartialFloats = kTokens * kSumStride;
  /// Two buffers in turn save a barrier; many tokens leave room for one.
  static constexpr int kPartialBuffers = kTokenTiles <= 2 ? 2 : 1;
  static constexpr int kPartialBytes = kPartialBuffers * kRowTiles * kParts * kPartialFloats * 4;
  static constexpr int kRingBytes = kSlots * kParts * kSlotBytes;
  static constexpr int kBarrierBytes = 2 * kSlots * kParts * 8;
  static_assert(kRingBytes + kPartialBytes + kBarrierBytes <= kMostSharedBytes);
};

/// Shared memory: x (whole, or rings), partial sums of two tiles in turn, barriers.
template <typename C>
struct DecodeShared {
  char* x;
  float* partials;
  std::uint32_t full;  // [run][slot]
  std::uint32_t empty;

  __device__ __forceinline__ DecodeShared(char* raw, int x_bytes) {
    x = raw;
    partials = reinterpret_cast<float*>(raw + x_bytes);
    full = ptx::shared_address(raw + x_bytes + C::kPartialBytes);
    empty = full + C::kSlots * kParts * 8;
  }
};

/// A run's ring: slots of kSlotChunks chunks, the last of a run may have fewer. Every warp of the
/// run reads it; lane 0 of the first fills it.
template <typename C>
struct InputRing {
  std::uint32_t slots;  // shared addresses of this run's
  std::uint32_t full;
  std::uint32_t empty;
  const std::byte* run;  // packed x
  int part_chunks;
  int left;  // chunks of all rounds that are still to be copied
  int fill_chunk = 0;
  int fill_slot = 0;
  std::uint32_t fill_parity = 1;  // of `empty`: the first fill needs no waiting
  int slot = 0;
  int in_slot = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void fill() {
    if (left == 0) return;
    const int count = min(C::kSlotChunks, part_chunks - fill_chunk);
    const std::uint32_t barrier = full + 8 * fill_slot;
    ptx::mbarrier_wait_parity(empty + 8 * fill_slot, fill_parity);
    ptx::mbarrier_arrive_expect_tx(barrier, count * C::kChunkInputBytes);
    ptx::cp_async_bulk(slots + fill_slot * C::kSlotBytes, run + fill_chunk * C::kChunkInputBytes,
                       count * C::kChunkInputBytes, barrier);
    left -= count;
    fill_chunk = fill_chunk + count == part_chunks ? 0 : fill_chunk + count;
    if (++fill_slot == C::kSlots) {
      fill_slot = 0;
      fill_parity ^= 1U;
    }
  }

  /// Offset in the ring of the next chunk, once it is there.
  __device__ __forceinline__ int next() {
    if (in_slot == 0) ptx::mbarrier_wait_parity(full + 8 * slot, parity);
    return slot * C::kSlotBytes + in_slot * C::kChunkInputBytes;
  }

  /// The chunk has been read. The filler refills the slot before this one: the others are rarely
  /// further behind.
  __device__ __forceinline__ void release(bool ends_run, bool fills, int lane) {
    if (++in_slot < C::kSlotChunks && !ends_run) return;
    in_slot = 0;
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(empty + 8 * slot);
      if (fills) fill();
    } else if (ptx::kRacecheck) {
      ptx::mbarrier_arrive(empty + 8 * slot);
    }
    __syncwarp();
    if (++slot == C::kSlots) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// sums += the chunk's weights · x; `x` is this lane's first 16 bytes, a half `half_stride`
/// further.
template <typename C>
__device__ __forceinline__ void multiply_chunk(const LaneChunk<C::kScheme>& weights, const char* x,
                                               int half_stride, float (&sums)[C::kTokenTiles][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 b[C::kTokenTiles];
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      b[t] = *reinterpret_cast<const uint4*>(x + half * half_stride + t * kTileChunkBytes);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t a[4];
      weights.fragment(2 * half + i, a);
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        ptx::mma_m16n8k16_bf16(sums[t], a, i == 0 ? b[t].x : b[t].z, i == 0 ? b[t].y : b[t].w);
      }
    }
  }
}

/// Leaves the warp's partial tile in shared memory, [token][row], and starts again from 0.
template <typename C>
__device__ __forceinline__ void store_partial(float (&sums)[C::kTokenTiles][4], int lane,
                                              float* out) {
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
    float* const at = out + (t * kTokenTile + lane % 4 * 2) * kSumStride + lane / 4;
    at[0] = sums[t][0];
    at[kSumStride] = sums[t][1];
    at[8] = sums[t][2];
    at[kSumStride + 8] = sums[t][3];
#pragma unroll
    for (float& sum : sums[t]) sum = 0.0F;
  }
}

/// Adds the runs in ascending order; by the `threads` threads of a tile's warps.
template <typename C>
__device__ __forceinline__ void store_tile(const DecodeParams& p, const float* partials, int tile,
                                           int thread, int threads) {
  for (int i = thread; i < 16 * p.num_tokens; i += threads) {
    const int token = i / 16;
    const int row = tile * 16 + i % 16;
    if (row >= p.rows) continue;
    const int at = token * kSumStride + i % 16;
    float sum = partials[at];
    for (int part = 1; part < p.parts; ++part) sum += partials[part * C::kPartialFloats + at];
    sum *= p.sum_scale;
    float* const y = p.y + token * p.y_stride + row;
    *y = p.accumulate ? *y + sum : sum;
  }
}

/// The stream of one warp's chunks: run `part` of tile after tile.
template <typename C>
struct ChunkStream {
  LaneSource source;
  std::int64_t next_tile;  // bytes from the end of a run to the next tile's
  int position = 0;        // of the next chunk in its run
  int part_chunks;

  __device__ __forceinline__ void load_next(LaneChunk<C::kScheme>& chunk) {
    chunk.load(source, 0);
    const bool ends = ++position == part_chunks;
    position = ends ? 0 : position;
    source.advance(C::kChunkBytes + (ends ? next_tile : 0));
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) sm90_linear_decode(const DecodeParams p) {
  extern __shared__ __align__(128) char raw[];
  const DecodeShared<C> shared(
      raw, C::kIsResident ? resident_bytes(p.num_chunks, p.num_tokens) : C::kRingBytes);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp % kParts;
  const int row_tile = warp / kParts;
  const int part_chunks = p.num_chunks / p.parts;
  const int stride_tiles = static_cast<int>(gridDim.x) * C::kRowTiles;
  const int first_tile = static_cast<int>(blockIdx.x) * C::kRowTiles;
  const int rounds = (p.num_tiles - first_tile + stride_tiles - 1) / stride_tiles;
  const bool works = part < p.parts;
  ptx::griddepcontrol_launch_dependents();

  if constexpr (!C::kIsResident) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < C::kSlots * kParts; ++i) {
        ptx::mbarrier_init(shared.full + 8 * i, 1);
        ptx::mbarrier_init(shared.empty + 8 * i, C::kRowTiles * ptx::kWarpArrivals);
      }
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
  }

  // The last round may lack tiles: those warps compute the last tile again and store nothing.
  const int own_tile = first_tile + row_tile;
  const auto clamped = [&](int tile) { return std::int64_t{min(tile, p.num_tiles - 1)}; };
  LaneChunk<C::kScheme> weights[C::kDepth];
  ChunkStream<C> stream;
  int loads = rounds * part_chunks;
  if (works) {
    const std::int64_t tile_bytes = std::int64_t{p.num_chunks} * C::kChunkBytes;
    stream.source = lane_source<C::kScheme>(
        p.w + clamped(own_tile) * tile_bytes + std::int64_t{part * part_chunks} * C::kChunkBytes,
        lane);
    stream.next_tile = stride_tiles * tile_bytes - std::int64_t{part_chunks} * C::kChunkBytes;
    stream.part_chunks = part_chunks;
    // A tile that is clamped must stay in place: only the last round's can be beyond the end.
    if (own_tile + (rounds - 1) * stride_tiles >= p.num_tiles) loads -= part_chunks;
#pragma unroll
    for (int d = 0; d < C::kDepth; ++d) {
      if (d < loads) stream.load_next(weights[d]);
    }
  }
  ptx::griddepcontrol_wait();

  if constexpr (C::kIsResident) {
    convert_input(p, C::kThreads, shared.x);
    __syncthreads();
  }
  if (!works) return;

  const char* x = shared.x;
  int chunk_stride = 0;
  int half_stride = 512;
  InputRing<C> ring;
  const bool fills = row_tile == 0;
  if constexpr (C::kIsResident) {
    half_stride = p.num_tokens * 64;
    chunk_stride = 2 * half_stride;
    x += part * part_chunks * chunk_stride + (min(lane / 4, p.num_tokens - 1) * 4 + lane % 4) * 16;
  } else {
    x += part * C::kSlots * C::kSlotBytes + lane * 16;
    ring.slots = ptx::shared_address(shared.x) + part * C::kSlots * C::kSlotBytes;
    ring.full = shared.full + part * C::kSlots * 8;
    ring.empty = shared.empty + part * C::kSlots * 8;
    ring.run = p.packed + std::int64_t{part * part_chunks} * C::kChunkInputBytes;
    ring.part_chunks = part_chunks;
    ring.left = rounds * part_chunks;
    if (fills && lane == 0) {
      for (int i = 0; i + 1 < C::kSlots; ++i) ring.fill();
    }
    __syncwarp();
  }

  float sums[C::kTokenTiles][4] = {};
  int chunk = 0;  // of the run
  int round = 0;
  const int total = rounds * part_chunks;
  for (int first = 0; first < total; first += C::kDepth) {
#pragma unroll
    for (int d = 0; d < C::kDepth; ++d) {
      if (first + d >= total) break;
      if constexpr (C::kIsResident) {
        multiply_chunk<C>(weights[d], x + chunk * chunk_stride, half_stride, sums);
      } else {
        multiply_chunk<C>(weights[d], x + ring.next(), half_stride, sums);
        ring.release(chunk + 1 == part_chunks, fills, lane);
      }
      if (first + d + C::kDepth < loads) stream.load_next(weights[d]);
      if (++chunk == part_chunks) {
        float* const tile_partials =
            shared.partials +
            (round % C::kPartialBuffers * C::kRowTiles + row_tile) * kParts * C::kPartialFloats;
        store_partial<C>(sums, lane, tile_partials + part * C::kPartialFloats);
        ptx::bar_sync(1 + row_tile, 32 * p.parts);
        const int tile = own_tile + round * stride_tiles;
        if (tile < p.num_tiles) {
          store_tile<C>(p, tile_partials, tile, part * 32 + lane, 32 * p.parts);
        }
        if (C::kPartialBuffers == 1) ptx::bar_sync(1 + row_tile, 32 * p.parts);
        chunk = 0;
        ++round;
      }
    }
  }
}

template <typename C>
int shared_bytes(const DecodeParams& p) {
  return C::kPartialBytes + C::kBarrierBytes +
         (C::kIsResident ? resident_bytes(p.num_chunks, p.num_tokens) : C::kRingBytes);
}

template <typename C>
void launch(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors) {
  static const cudaError_t status = cudaFuncSetAttribute(
      sm90_linear_decode<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  check(status, "cudaFuncSetAttribute");
  const int groups = (params.num_tiles + C::kRowTiles - 1) / C::kRowTiles;
  launch_overlapping(sm90_linear_decode<C>,
                     {.grid = dim3(static_cast<unsigned>(std::min(groups, num_multiprocessors))),
                      .block = dim3(C::kThreads),
                      .shared_bytes = static_cast<std::size_t>(shared_bytes<C>(params))},
                     stream, params, "sm90_linear_decode");
}

/// Tiles that the busiest multiprocessor works on with blocks of `row_tiles`.
int busiest(int num_tiles, int row_tiles, int num_multiprocessors) {
  const int groups = (num_tiles + row_tiles - 1) / row_tiles;
  return (groups + num_multiprocessors - 1) / num_multiprocessors * row_tiles;
}

/// Row tiles of a block, 3 to `most`: the least for the busiest, then the most.
int choose_row_tiles(int num_tiles, int most, int num_multiprocessors) {
  int best = most;
  for (int tiles = most - 1; tiles >= 3; --tiles) {
    if (busiest(num_tiles, tiles, num_multiprocessors) <
        busiest(num_tiles, best, num_multiprocessors)) {
      best = tiles;
    }
  }
  return best;
}

/// Chunks in flight for each warp: 60 to 100 KB a block.
constexpr int depth(QuantScheme scheme, int row_tiles) {
  const int bytes = scheme == QuantScheme::kBF16 ? 2 : scheme == QuantScheme::kMxfp8 ? 4 : 6;
  return row_tiles <= 3 ? bytes + 2 : bytes;
}

template <QuantScheme S, int kTokenTiles, int kSlots, int kLessDepth>
void launch_rows(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors) {
  // Eight tiles of tokens leave no registers for five of rows.
  constexpr int kMost = kTokenTiles == 8 ? 4 : 5;
  switch (choose_row_tiles(params.num_tiles, kMost, num_multiprocessors)) {
    case 3:
      return launch<DecodeConfig<S, 3, kTokenTiles, depth(S, 3) - kLessDepth, kSlots>>(
          stream, params, num_multiprocessors);
    case 4:
      return launch<DecodeConfig<S, 4, kTokenTiles, depth(S, 4) - kLessDepth, kSlots>>(
          stream, params, num_multiprocessors);
    default:
      if constexpr (kMost == 5) {
        return launch<DecodeConfig<S, 5, kTokenTiles, depth(S, 5) - kLessDepth, kSlots>>(
            stream, params, num_multiprocessors);
      }
  }
}

template <QuantScheme S>
void launch_scheme(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors) {
  if (params.packed == nullptr) {
    return launch_rows<S, 1, 0, 0>(stream, params, num_multiprocessors);
  }
  constexpr int kLess = S == QuantScheme::kBF16 ? 0 : 1;
  switch (token_tiles(params.num_tokens)) {
    case 1:
      return launch_rows<S, 1, 4, 0>(stream, params, num_multiprocessors);
    case 2:
      return launch_rows<S, 2, 4, 0>(stream, params, num_multiprocessors);
    case 4:
      return launch_rows<S, 4, 4, kLess>(stream, params, num_multiprocessors);
    default:
      return launch_rows<S, 8, 4, 2 * kLess>(stream, params, num_multiprocessors);
  }
}

DecodeParams decode_params(const FastLinear& linear, const std::byte* packed) {
  return {.w = linear.w.data,
          .packed = packed,
          .x = linear.x,
          .y = linear.y + linear.w.first_row,
          .x_stride = linear.x_stride,
          .y_stride = linear.y_stride,
          .num_tiles = static_cast<int>(linear.w.num_tiles),
          .num_chunks = static_cast<int>(linear.w.num_chunks),
          .parts = k_parts(static_cast<int>(linear.w.num_chunks)),
          .rows = static_cast<int>(linear.w.rows),
          .num_tokens = static_cast<int>(linear.num_tokens),
          .sum_scale = sum_scale(linear.w),
          .accumulate = linear.accumulate};
}

}  // namespace linear_decode

using namespace linear_decode;  // NOLINT(google-build-using-namespace): of this file

bool takes_direct_input(const MatrixPart& part, std::int64_t num_tokens, int num_multiprocessors) {
  if (has_stream_kernel(part, num_tokens, num_multiprocessors)) {
    return num_tokens <= kStreamDirectTokens;
  }
  return num_tokens <= kTokenTile && part.num_tiles > kSmallTiles * num_multiprocessors &&
         resident_bytes(static_cast<int>(part.num_chunks), static_cast<int>(num_tokens)) <=
             kMostSharedBytes - 30 * 1024;
}

void decode_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed,
                   int num_multiprocessors) {
  const DecodeParams params = decode_params(linear, packed);
  if (has_stream_kernel(linear.w, linear.num_tokens, num_multiprocessors)) {
    return launch_stream(stream, params, num_multiprocessors);
  }
  if (packed != nullptr && launch_small(stream, linear.w.scheme, params, num_multiprocessors)) {
    return;
  }
  with_fast_scheme(linear.w.scheme,
                   [&]<QuantScheme S>() { launch_scheme<S>(stream, params, num_multiprocessors); });
}

}  // namespace winnow::cuda
