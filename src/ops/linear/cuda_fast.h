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

/// How many runs of equal length a row of `num_chunks` 64-column chunks is summed in.
WINNOW_HOST_DEVICE constexpr int k_parts(int num_chunks) {
  return num_chunks >= 16 && num_chunks % 4 == 0 ? 4 : 1;
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

/// Tokens that an operation projects at a time, and the scratch it hands to project() for them.
struct ProjectionRound {
  std::int64_t num_tokens = 0;
  std::int64_t workspace_bytes = 0;
};

/// As many of `num_tokens` as fit in the context's scratch beside `token_bytes` of other scratch
/// for each.
ProjectionRound plan_round(Context& context, std::int64_t num_tokens, std::int64_t num_chunks,
                           std::int64_t token_bytes);

/// At most a round's tokens, in its workspace.
void project(Context& context, const FastProjection& projection, std::byte* workspace,
             std::int64_t workspace_bytes);

// What project() is made of.

/// Calls function.template operator()<scheme>() where the scheme has fast kernels; false: it has
/// none.
template <typename Function>
bool with_fast_scheme(QuantScheme scheme, const Function& function) {
  switch (scheme) {
    case QuantScheme::kMxfp8:
      function.template operator()<QuantScheme::kMxfp8>();
      return true;
    case QuantScheme::kBF16:
      function.template operator()<QuantScheme::kBF16>();
      return true;
    case QuantScheme::kNvfp4:
      function.template operator()<QuantScheme::kNvfp4>();
      return true;
    case QuantScheme::kF32:
      return false;
  }
  return false;
}

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

/// Whether decode_linear() converts x itself and needs no packed copy; x is then aligned to 8
/// bytes, x_stride even.
bool takes_direct_input(const MatrixPart& part, std::int64_t num_tokens, int num_multiprocessors);

/// Bytes of x packed for decode_linear(): bf16, in the order of the matrix unit's B operand.
std::int64_t packed_decode_bytes(std::int64_t num_tokens, std::int64_t num_chunks);

/// x as packed_decode_bytes() says.
void pack_decode_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                       std::int64_t num_tokens, std::int64_t num_chunks, std::byte* packed);

/// num_tokens <= kMaxDecodeTokens. `packed` may be null where takes_direct_input().
void decode_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed,
                   int num_multiprocessors);

/// The block_tokens with which x is packed for middle_linear(), as for prefill; 0: it has no kernel
/// for that.
int middle_tokens(const MatrixPart& part, std::int64_t num_tokens);

/// `packed` by pack_prefill_input() in one block of middle_tokens().
void middle_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed,
                   int num_multiprocessors);

/// Whether prefill_linear() takes the part: its runs are of an even number of chunks.
bool has_prefill_kernel(const MatrixPart& part);

/// Tokens of one block of prefill_linear(), 128 or 256: what fills the device better.
int prefill_block_tokens(std::int64_t rows, std::int64_t num_tokens, std::int64_t num_chunks,
                         int num_multiprocessors);

/// Bytes of x packed for prefill_linear(): bf16, [token block][chunk][token][64], as wgmma reads
/// it.
std::int64_t packed_prefill_bytes(std::int64_t num_tokens, std::int64_t num_chunks,
                                  int block_tokens);

void pack_prefill_input(CUstream_st* stream, const float* x, std::int64_t x_stride,
                        std::int64_t num_tokens, std::int64_t num_chunks, int block_tokens,
                        std::byte* packed);

/// The most bytes of partial sums that prefill_linear() needs to cut its last tiles into runs.
std::int64_t prefill_partial_bound(int num_multiprocessors);

/// What a launch of prefill_linear() reads and writes besides its matrices.
struct PrefillSpace {
  const std::byte* packed = nullptr;
  std::byte* partials = nullptr;      // null: last tiles are not cut
  std::uint32_t* counters = nullptr;  // one for each multiprocessor, 0 before and after
};

void prefill_linear(CUstream_st* stream, const FastLinear& linear, const PrefillSpace& space,
                    int block_tokens, int num_multiprocessors);

}  // namespace winnow::cuda
