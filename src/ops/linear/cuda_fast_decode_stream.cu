// Linear for two to eight tokens and matrices of up to five tiles of 16 rows for each
// multiprocessor: one block a multiprocessor that owns its tiles from the start. Floor: bytes of
// the weights over memory bandwidth.
//
// Weights do not depend on the launch before, so all that a block's shared memory holds of them (13
// to 22 MB in all, 3 to 5 us of the memory's time) is copied while that one still runs. A warp owns
// a run of columns (cuda_fast.h) of one tile and a ring of its pieces that it refills itself: of
// the weights nothing is waited for but a warp's own copies. x of two tokens is converted by every
// block and stays in shared memory; that of more comes from pack_decode_input() through a ring for
// each run, which one more warp fills.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/linear/cuda_decode_pack.cuh"
#include "ops/linear/cuda_fast_decode.cuh"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda {
namespace linear_decode {
namespace {

constexpr int kPieceChunks = 4;  // 4224 bytes of MXFP8: whole lines of 128
constexpr int kDepth = 2;  // pieces of a warp's ring, and of x: blocks of attention fit beside
constexpr int kInputPieceBytes = kPieceChunks * kTileChunkBytes;

/// Choices of a kernel: tiles of a block, and whether x comes packed.
template <QuantScheme kSchemeOf, int kTilesOf, bool kIsPackedOf>
struct StreamConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kTiles = kTilesOf;
  static constexpr bool kIsPacked = kIsPackedOf;
  static constexpr int kComputeWarps = kTiles * kParts;
  static constexpr int kThreads = 32 * (kComputeWarps + (kIsPacked ? 1 : 0));
  static constexpr int kChunkBytes = static_cast<int>(chunk_bytes(kScheme));
  static constexpr int kPieceBytes = kPieceChunks * kChunkBytes;
  static constexpr int kRingBytes = kDepth * kPieceBytes;
  // Of the weights, then of x: full, empty.
  static constexpr int kBarrierBytes = (kComputeWarps + 2 * kParts) * kDepth * 8;
  static constexpr int kFixedBytes = (kBarrierBytes + 127) / 128 * 128 + kComputeWarps * kRingBytes;
};

/// The rings of packed x, one for each run.
struct InputRings {
  std::uint32_t bytes;
  std::uint32_t barriers;

  __device__ __forceinline__ std::uint32_t piece(int part, int slot) const {
    return bytes + (part * kDepth + slot) * kInputPieceBytes;
  }
  __device__ __forceinline__ std::uint32_t full(int part, int slot) const {
    return barriers + (part * kDepth + slot) * 8;
  }
  __device__ __forceinline__ std::uint32_t empty(int part, int slot) const {
    return full(part, slot) + kParts * kDepth * 8;
  }

  __device__ __forceinline__ void init(std::uint32_t num_readers) const {
    for (int part = 0; part < kParts; ++part) {
      for (int slot = 0; slot < kDepth; ++slot) {
        ptx::mbarrier_init(full(part, slot), 1);
        ptx::mbarrier_init(empty(part, slot), num_readers * ptx::kWarpArrivals);
      }
    }
    ptx::fence_mbarrier_init();
  }

  /// One thread.
  __device__ __forceinline__ void fill(const DecodeParams& p, int num_pieces) const {
    RingPlace<kDepth> place;
    for (int piece = 0; piece < num_pieces; ++piece) {
      for (int part = 0; part < p.parts; ++part) {
        ptx::mbarrier_wait_parity(empty(part, place.slot), place.parity ^ 1U);
        ptx::mbarrier_arrive_expect_tx(full(part, place.slot), kInputPieceBytes);
        ptx::cp_async_bulk(this->piece(part, place.slot),
                           p.packed + std::int64_t{part * num_pieces + piece} * kInputPieceBytes,
                           kInputPieceBytes, full(part, place.slot));
      }
      place.advance();
    }
  }
};

template <typename C>
__global__ void __launch_bounds__(C::kThreads, 1) sm90_linear_decode_stream(const DecodeParams p) {
  extern __shared__ __align__(128) std::byte shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part = warp % kParts;
  const int slot = warp / kParts;
  const int num_blocks = static_cast<int>(gridDim.x);
  const int tile = slot * num_blocks + static_cast<int>(blockIdx.x);
  const int num_chunks = p.num_chunks / p.parts;
  const int num_pieces = num_chunks / kPieceChunks;
  const bool works = part < p.parts && slot < C::kTiles && tile < p.num_tiles;

  std::byte* const ring_bytes = shared + warp * C::kRingBytes;
  const std::uint32_t ring = ptx::shared_address(ring_bytes);
  const std::uint32_t all_barriers = ptx::shared_address(shared) + C::kComputeWarps * C::kRingBytes;
  const std::uint32_t barriers = all_barriers + warp * kDepth * 8;
  std::byte* const input = shared + C::kFixedBytes;
  const InputRings rings{.bytes = ptx::shared_address(input),
                         .barriers = all_barriers + C::kComputeWarps * kDepth * 8};
  const std::byte* source =
      p.w + (std::int64_t{tile} * p.num_chunks + part * num_chunks) * C::kChunkBytes;
  const auto copy = [&](int place) {
    ptx::mbarrier_arrive_expect_tx(barriers + place * 8, C::kPieceBytes);
    ptx::cp_async_bulk(ring + place * C::kPieceBytes, source, C::kPieceBytes, barriers + place * 8);
    source += C::kPieceBytes;
  };
  if (works && lane == 0) {
    for (int place = 0; place < kDepth; ++place) ptx::mbarrier_init(barriers + place * 8, 1);
    ptx::fence_mbarrier_init();
    for (int place = 0; place < min(kDepth, num_pieces); ++place) copy(place);
  }
  ptx::griddepcontrol_launch_dependents();
  if constexpr (C::kIsPacked) {
    if (threadIdx.x == 0) {
      rings.init((p.num_tiles - static_cast<int>(blockIdx.x) + num_blocks - 1) / num_blocks);
    }
    ptx::griddepcontrol_wait();
  } else {
    ptx::griddepcontrol_wait();
    convert_input(p, C::kThreads, input);
  }
  __syncthreads();
  if (C::kIsPacked && slot == C::kTiles) {
    if (lane == 0) rings.fill(p, num_pieces);
    return;
  }
  if (tile >= p.num_tiles) return;

  // A thread's output; its old value is on the way during the sum.
  const int thread = static_cast<int>(threadIdx.x) % (32 * kParts);
  const int token = thread / 16;
  const int row = tile * 16 + thread % 16;
  const bool has_output = token < p.num_tokens && row < p.rows;
  float* const y = p.y + token * p.y_stride + row;
  const float old = has_output && p.accumulate ? *y : 0.0F;

  float sums[4] = {};
  if (works) {
    const int half_bytes = C::kIsPacked ? kTileChunkBytes / 2 : p.num_tokens * 64;
    const int column = C::kIsPacked ? lane : min(lane / 4, p.num_tokens - 1) * 4 + lane % 4;
    std::uint32_t x = rings.bytes + part * num_chunks * 2 * half_bytes + column * 16;
    RingPlace<kDepth> place;
#pragma unroll 1
    for (int piece = 0; piece < num_pieces; ++piece) {
      if constexpr (C::kIsPacked) {
        ptx::mbarrier_wait_parity(rings.full(part, place.slot), place.parity);
        x = rings.piece(part, place.slot) + column * 16;
      }
      ptx::mbarrier_wait_parity(barriers + place.slot * 8, place.parity);
#pragma unroll
      for (int chunk = 0; chunk < kPieceChunks; ++chunk) {
        LaneChunk<C::kScheme> weights;
        weights.load_shared(ring + place.slot * C::kPieceBytes + chunk * C::kChunkBytes, lane);
        const uint4 halves[2] = {ptx::ld_shared_v4(x), ptx::ld_shared_v4(x + half_bytes)};
        x += 2 * half_bytes;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          std::uint32_t a[4];
          weights.fragment(step, a);
          const uint4& half = halves[step / 2];
          ptx::mma_m16n8k16_bf16(sums, a, step % 2 == 0 ? half.x : half.z,
                                 step % 2 == 0 ? half.y : half.w);
        }
      }
      // Reads of the piece come before the copy that takes its place: without the fence results
      // were seen to waver.
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        if constexpr (C::kIsPacked) ptx::mbarrier_arrive(rings.empty(part, place.slot));
        if (piece + kDepth < num_pieces) copy(place.slot);
      } else if (C::kIsPacked && ptx::kRacecheck) {
        ptx::mbarrier_arrive(rings.empty(part, place.slot));
      }
      place.advance();
    }
    // All copies have arrived: the ring's start takes the run's sums, as [token][row].
    __syncwarp();
    float* const at = reinterpret_cast<float*>(ring_bytes) + lane % 4 * 2 * kSumStride + lane / 4;
    at[0] = sums[0];
    at[kSumStride] = sums[1];
    at[8] = sums[2];
    at[kSumStride + 8] = sums[3];
  }
  ptx::bar_sync(1 + slot, 32 * kParts);
  if (!has_output) return;
  const std::byte* const partials =
      ring_bytes - part * C::kRingBytes + (token * kSumStride + thread % 16) * sizeof(float);
  float sum = *reinterpret_cast<const float*>(partials);
  for (int i = 1; i < p.parts; ++i) {
    sum += *reinterpret_cast<const float*>(partials + i * C::kRingBytes);
  }
  sum *= p.sum_scale;
  *y = p.accumulate ? old + sum : sum;
}

template <int kTiles, bool kIsPacked>
void launch(cudaStream_t stream, const DecodeParams& p, int num_multiprocessors) {
  using C = StreamConfig<QuantScheme::kMxfp8, kTiles, kIsPacked>;
  static const cudaError_t status = cudaFuncSetAttribute(
      sm90_linear_decode_stream<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes);
  check(status, "cudaFuncSetAttribute");
  const int input_bytes = C::kIsPacked ? kParts * kDepth * kInputPieceBytes
                                       : resident_bytes(p.num_chunks, p.num_tokens);
  launch_overlapping(
      sm90_linear_decode_stream<C>,
      {.grid = dim3(static_cast<unsigned>(std::min(p.num_tiles, num_multiprocessors))),
       .block = dim3(C::kThreads),
       .shared_bytes = static_cast<std::size_t>(C::kFixedBytes + input_bytes)},
      stream, p, "sm90_linear_decode_stream");
}

}  // namespace

bool has_stream_kernel(const MatrixPart& part, std::int64_t num_tokens, int num_multiprocessors) {
  constexpr std::int64_t kMostResidentChunks = 160;  // two tokens' are 40 KB
  const int parts = k_parts(static_cast<int>(part.num_chunks));
  return part.scheme == QuantScheme::kMxfp8 && num_tokens >= kStreamMinTokens &&
         num_tokens <= kStreamTokens && part.num_tiles <= kSmallTiles * num_multiprocessors &&
         part.num_chunks <= kMostResidentChunks && part.num_chunks % (parts * kPieceChunks) == 0;
}

void launch_stream(cudaStream_t stream, const DecodeParams& p, int num_multiprocessors) {
  const bool is_narrow = p.num_tiles <= 3 * num_multiprocessors;
  if (p.packed != nullptr) {
    is_narrow ? launch<3, true>(stream, p, num_multiprocessors)
              : launch<5, true>(stream, p, num_multiprocessors);
  } else {
    is_narrow ? launch<3, false>(stream, p, num_multiprocessors)
              : launch<5, false>(stream, p, num_multiprocessors);
  }
}

}  // namespace linear_decode

}  // namespace winnow::cuda
