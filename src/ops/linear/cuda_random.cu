// Random weights made where they are to lie: a model of full size without a checkpoint.
#include <cmath>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda {
namespace {

/// One draw per word (splitmix64's finaliser).
__device__ std::uint32_t draw(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = seed + index * 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<std::uint32_t>((x ^ (x >> 31U)) >> 16U);
}

/// Word `at` of a chunk, so that values are of either sign and within a factor of four of
/// 2^-log2_inverse, and none is NaN: what is timed then computes with ordinary numbers.
__device__ std::uint32_t random_word(QuantScheme scheme, std::uint32_t bits, std::int64_t at,
                                     int log2_inverse) {
  switch (scheme) {
    case QuantScheme::kNvfp4:
      // Codes are any bits; scales are 0.5 … 0.9375, and the matrix scale does the rest.
      return at < 512 / 4 ? bits : (bits & 0x07070707U) | 0x30303030U;
    case QuantScheme::kMxfp8:
      // Values ±0.5 … ±1.875; one power of two for all.
      return at < 1024 / 4 ? (bits & 0x8F8F8F8FU) | 0x30303030U
                           : 0x01010101U * static_cast<std::uint32_t>(127 - log2_inverse);
    case QuantScheme::kBF16: {
      const std::uint32_t exponent = static_cast<std::uint32_t>(127 - log2_inverse) << 7U;
      return (bits & 0x807F807FU) | exponent | exponent << 16U;
    }
    case QuantScheme::kF32:
      return (bits & 0x807FFFFFU) | static_cast<std::uint32_t>(127 - log2_inverse) << 23U;
  }
  return 0;
}

__global__ void fill_chunks(std::uint32_t* data, std::int64_t num_words, std::int64_t chunk_words,
                            QuantScheme scheme, int log2_inverse, std::uint64_t seed) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_words;
       i += stride) {
    data[i] = random_word(scheme, draw(seed, static_cast<std::uint64_t>(i)), i % chunk_words,
                          log2_inverse);
  }
}

}  // namespace

std::unique_ptr<ops::PackedMatrix> make_random(Context& context,
                                               std::span<const ops::MatrixShape> stacked,
                                               std::uint64_t seed) {
  std::vector<MatrixPart> parts;
  std::int64_t num_rows = 0;
  std::int64_t num_bytes = 0;
  const std::int64_t cols = stacked.front().cols;
  const int log2_inverse = static_cast<int>(std::lround(std::log2(static_cast<double>(cols)) / 2));
  for (const ops::MatrixShape& shape : stacked) {
    const bool is_nvfp4 = shape.scheme == QuantScheme::kNvfp4;
    parts.push_back({.scheme = shape.scheme,
                     .first_row = num_rows,
                     .rows = shape.rows,
                     .num_tiles = (shape.rows + kTileRows - 1) / kTileRows,
                     .num_chunks = (cols + kChunkCols - 1) / kChunkCols,
                     .matrix_scale = is_nvfp4 ? std::ldexp(0.5F, -log2_inverse) : 1.0F,
                     .fits_bf16 = true});
    num_rows += shape.rows;
    num_bytes += part_bytes(parts.back());
  }
  ops::Array<std::byte> data(context.memory(), num_bytes, "weights");
  std::byte* next = data.data();
  for (MatrixPart& part : parts) {
    part.data = next;
    const std::int64_t chunk = chunk_bytes(part.scheme);
    fill_chunks<<<1024, 256, 0, context.stream()>>>(
        reinterpret_cast<std::uint32_t*>(next), part_bytes(part) / 4, chunk / 4, part.scheme,
        log2_inverse, seed + static_cast<std::uint64_t>(part.first_row));
    check_launch("fill_chunks");
    next += part_bytes(part);
  }
  return std::make_unique<CudaMatrix>(num_rows, cols, std::move(parts), std::move(data));
}

}  // namespace winnow::cuda
