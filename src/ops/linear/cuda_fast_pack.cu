// x to bf16, nearest even, in the orders that the linear kernels read. Floor: bytes of x in fp32
// and in bf16 over memory bandwidth; measured 0.9 of it for 8192 tokens.
#include <cuda_runtime.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_decode_pack.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_fast_decode.cuh"

namespace winnow::cuda {
namespace linear_pack {

using linear_decode::DecodePack;
using linear_decode::kPackThreads;
using linear_decode::kTileChunkBytes;
using linear_decode::token_tiles;

constexpr int kChunkRowBytes = 128;  // 64 bf16 of one token

__global__ void __launch_bounds__(kPackThreads) sm90_pack_decode_input(const DecodePack p) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  pack_decode_vectors(p, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

struct PrefillPack {
  const float* x;
  std::byte* packed;
  std::int64_t x_stride;
  int num_tokens;
  int num_chunks;
  int block_tokens;
};

/// One thread converts eight columns of one token: 16 bytes of a stage.
__global__ void __launch_bounds__(256) sm90_pack_prefill_input(const PrefillPack p) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int unit_of_row = static_cast<int>(blockIdx.x) * 256 + static_cast<int>(threadIdx.x);
  const int chunk = unit_of_row / 8;
  const int unit = unit_of_row % 8;
  if (chunk >= p.num_chunks) return;
  const int token = static_cast<int>(blockIdx.y);
  const int row = token % p.block_tokens;
  uint4 out{};
  if (token < p.num_tokens) {
    const float* const at = p.x + token * p.x_stride + unit_of_row * 8;
    out = {ptx::cvt_rn_bf16x2(at[0], at[1]), ptx::cvt_rn_bf16x2(at[2], at[3]),
           ptx::cvt_rn_bf16x2(at[4], at[5]), ptx::cvt_rn_bf16x2(at[6], at[7])};
  }
  const std::int64_t stage = std::int64_t{token / p.block_tokens} * p.num_chunks + chunk;
  *reinterpret_cast<uint4*>(p.packed + (stage * p.block_tokens + row) * kChunkRowBytes +
                            (unit ^ row % 8) * 16) = out;
}

}  // namespace linear_pack

using namespace linear_pack;  // NOLINT(google-build-using-namespace): of this file

std::int64_t packed_decode_bytes(std::int64_t num_tokens, std::int64_t num_chunks) {
  return num_chunks * token_tiles(num_tokens) * kTileChunkBytes;
}

void pack_decode_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                       std::int64_t num_tokens, std::int64_t num_chunks, std::byte* packed) {
  const DecodePack params{.x = x,
                          .packed = reinterpret_cast<uint4*>(packed),
                          .x_stride = x_stride,
                          .num_tokens = static_cast<int>(num_tokens),
                          .token_tiles = token_tiles(num_tokens),
                          .num_chunks = static_cast<int>(num_chunks)};
  const auto blocks = static_cast<unsigned>(
      (num_chunks * params.token_tiles * 64 + kPackThreads - 1) / kPackThreads);
  launch_overlapping(sm90_pack_decode_input, {.grid = dim3(blocks), .block = dim3(kPackThreads)},
                     stream, params, "sm90_pack_decode_input");
}

std::int64_t packed_prefill_bytes(std::int64_t num_tokens, std::int64_t num_chunks,
                                  int block_tokens) {
  return (num_tokens + block_tokens - 1) / block_tokens * block_tokens * num_chunks *
         kChunkRowBytes;
}

void pack_prefill_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                        std::int64_t num_tokens, std::int64_t num_chunks, int block_tokens,
                        std::byte* packed) {
  const PrefillPack params{.x = x,
                           .packed = packed,
                           .x_stride = x_stride,
                           .num_tokens = static_cast<int>(num_tokens),
                           .num_chunks = static_cast<int>(num_chunks),
                           .block_tokens = block_tokens};
  const std::int64_t padded = (num_tokens + block_tokens - 1) / block_tokens * block_tokens;
  launch_overlapping(sm90_pack_prefill_input,
                     {.grid = dim3(static_cast<unsigned>((num_chunks * 8 + 255) / 256),
                                   static_cast<unsigned>(padded)),
                      .block = dim3(256)},
                     stream, params, "sm90_pack_prefill_input");
}

}  // namespace winnow::cuda
