// The fast linear kernels as the other fused operations use them.
//
// Numerics of the fast set: x is rounded to bf16 (nearest even), weights are exact in bf16, and
// products are summed in fp32 by the matrix unit. The columns are cut into k_parts() runs of whole
// 64-column chunks; each run is one chain of k16 steps from 0 in ascending order, and the runs are
// added in ascending order; then the NVFP4 matrix scale multiplies once. That mma.sync.m16n8k16 and
// wgmma of every width give the same bits in such a chain is measured (cuda_linear_bench.cu checks
// it again), so decode and prefill agree to the bit and a token's result never depends on the
// batch.
#pragma once

#include <array>
#include <cstdint>

#include "base/host_device.h"
#include "ops/linear/cuda_matrix.h"

struct CUstream_st;

namespace winnow::cuda {

/// How many runs a row of `num_chunks` 64-column chunks is summed in.
WINNOW_HOST_DEVICE constexpr int k_parts(int num_chunks) { return num_chunks >= 16 ? 4 : 1; }

/// First chunk of run `part`; run `part` ends where the next begins.
WINNOW_HOST_DEVICE constexpr int part_begin(int num_chunks, int parts, int part) {
  return num_chunks * part / parts;
}

class Context;

/// The parts of a matrix as kernels are launched for them: neighbours that continue each other are
/// one.
struct FastParts {
  static constexpr int kMost = 8;
  std::array<MatrixPart, kMost> parts;
  int count = 0;  // 0: some part has no fast kernel

  std::int64_t num_chunks() const { return parts[0].num_chunks; }
};
FastParts fast_parts(const ops::PackedMatrix& w);

/// y[t][n] (+)= Σ_k x[t][k] · W[n][k] for all rows of a matrix.
struct FastProjection {
  FastParts w;
  const float* x = nullptr;  // [num_tokens][64 · num_chunks], row stride x_stride
  std::int64_t x_stride = 0;
  float* y = nullptr;  // row stride y_stride
  std::int64_t y_stride = 0;
  std::int64_t num_tokens = 0;
  bool accumulate = false;
};

/// Bytes that project() takes to go over all tokens in one round; it makes do with
/// kLeastPackedTokens' worth.
std::int64_t packed_bytes(std::int64_t num_tokens, std::int64_t num_chunks);
inline constexpr std::int64_t kLeastPackedTokens = 256;

/// Uses `packed` for x in bf16, round by round.
void project(const Context& context, const FastProjection& projection, std::byte* packed,
             std::int64_t num_bytes);

// What project() is made of.

/// y[t][first_row + n] (+)= Σ_k x[t][k] · W[n][k] for one part of a packed matrix.
struct FastLinear {
  MatrixPart w;
  const float* x = nullptr;  // [num_tokens][64 · w.num_chunks], row stride x_stride
  std::int64_t x_stride = 0;
  float* y = nullptr;  // row stride y_stride
  std::int64_t y_stride = 0;
  std::int64_t num_tokens = 0;
  bool accumulate = false;
};

/// Most tokens of the decode kernels, which stream the weights once.
inline constexpr std::int64_t kMaxDecodeTokens = 64;

/// Up to here the decode kernel reads x as it is and needs no packed copy.
inline constexpr std::int64_t kMaxDirectTokens = 8;

/// Bytes of x packed for decode_linear(): bf16, in the order of the matrix unit's B operand.
std::int64_t packed_decode_bytes(std::int64_t num_tokens, std::int64_t num_chunks);

/// x as packed_decode_bytes() says.
void pack_decode_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                       std::int64_t num_tokens, std::int64_t num_chunks, std::byte* packed);

/// num_tokens <= kMaxDecodeTokens. `packed` may be null up to kMaxDirectTokens.
void decode_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed);

/// Whether prefill_linear() takes the part: its runs are of an even number of chunks.
bool has_prefill_kernel(const MatrixPart& part);

/// Tokens of one block of prefill_linear(), 128 or 256: what fills the device better.
int prefill_block_tokens(std::int64_t rows, std::int64_t num_tokens, int num_multiprocessors);

/// Bytes of x packed for prefill_linear(): bf16, [token block][chunk][token][64], as wgmma reads
/// it.
std::int64_t packed_prefill_bytes(std::int64_t num_tokens, std::int64_t num_chunks,
                                  int block_tokens);

void pack_prefill_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                        std::int64_t num_tokens, std::int64_t num_chunks, int block_tokens,
                        std::byte* packed);

void prefill_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed,
                    int block_tokens, int num_multiprocessors);

}  // namespace winnow::cuda
