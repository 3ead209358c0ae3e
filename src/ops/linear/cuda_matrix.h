// Weights on a device: the layout that every CUDA kernel reads.
//
// Rows are cut into tiles of 16, columns into chunks of 64 (both padded with zeros); a tile's
// chunks follow each other, so a warp that owns a tile streams it from end to end. Inside a chunk
// the values lie in the order of the A operand of mma.m16n8k16 and wgmma (A from registers). With
// lane l, g = l / 4, c = l % 4, k-step s = 0 … 3 of the chunk, lane l owns in step s the 8 values
//
//   row g: columns 16s + {2c, 2c+1},   row g+8: the same,
//   row g: columns 16s + {2c+8, 2c+9}, row g+8: the same          (values 0 … 7, in this order)
//
//   NVFP4: 32 lanes × 16 bytes: per lane one 32-bit word a step, value i's four bits where
//          nvfp4_place() puts them; then scales, [g] × 8 bytes: row g's four, row g+8's four (one
//          E4M3 a step). 576 bytes.
//   MXFP8: 2 halves × 32 lanes × 16 bytes: half h holds steps 2h, 2h+1, eight bytes each, value i
//          in byte mxfp8_byte(i); then scales [g] × 4 bytes: row g's two, row g+8's two (E8M0, one
//          per two steps). 1056 bytes.
//   BF16:  4 steps × 32 lanes × 8 values. 2048 bytes.
//   F32:   the same with 4-byte values. 4096 bytes.
//
// The order inside a word is what a tensor-core kernel unpacks in the fewest instructions: each
// half of the word is one column of a pair of values, and a shift by a constant brings a pair's
// signs to bits 15 and 31 and its magnitudes to where bf16 has exponent and mantissa.
//
// A stack of sources with different schemes is a list of parts, each of whole 16-row tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/memory.h"

namespace winnow::cuda {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kChunkCols = 64;

/// Bytes of one 16 × 64 chunk, its scales included.
constexpr std::int64_t chunk_bytes(QuantScheme scheme) {
  switch (scheme) {
    case QuantScheme::kNvfp4:
      return 576;
    case QuantScheme::kMxfp8:
      return 1056;
    case QuantScheme::kBF16:
      return 2048;
    case QuantScheme::kF32:
      return 4096;
  }
  return 0;
}

/// Bit of a half word where the sign of values 2j, 2j+1 of a step lies, and the lowest bit of their
/// three-bit magnitudes. Even values use the low half of the word, odd ones the high half.
constexpr int nvfp4_sign_bit(int pair) {
  return pair == 0 ? 15 : pair == 1 ? 9 : pair == 2 ? 11 : 10;
}
constexpr int nvfp4_magnitude_bit(int pair) {
  return pair == 0 ? 6 : pair == 1 ? 0 : pair == 2 ? 3 : 12;
}

/// The bits of a step's word that hold `code` (sign << 3 | magnitude) as value i, 0 … 7; a word is
/// the OR of its eight.
constexpr std::uint32_t nvfp4_place(std::uint32_t code, int i) {
  const std::uint32_t half =
      (code >> 3 & 1U) << nvfp4_sign_bit(i / 2) | (code & 7U) << nvfp4_magnitude_bit(i / 2);
  return half << (i % 2 * 16);
}

/// Value i's code in a step's word: the inverse of nvfp4_place().
constexpr std::uint32_t nvfp4_code(std::uint32_t word, int i) {
  const std::uint32_t half = word >> (i % 2 * 16);
  return (half >> nvfp4_sign_bit(i / 2) & 1U) << 3 | (half >> nvfp4_magnitude_bit(i / 2) & 7U);
}

/// Byte of a step's eight where value i lies: 0 2 1 3 4 6 5 7.
constexpr int mxfp8_byte(int i) { return (i & 4) | (i & 1) << 1 | (i & 2) >> 1; }

/// Whether a scale byte lets a fast kernel multiply it into its elements: NVFP4, neither negative
/// nor NaN; MXFP8, so that every product is a normal bf16.
constexpr bool fits_bf16(QuantScheme scheme, std::uint8_t scale) {
  if (scheme == QuantScheme::kNvfp4) return scale < 0x7F;
  if (scheme == QuantScheme::kMxfp8) return scale >= 10 && scale <= 134;
  return true;
}

/// One source of the stack: rows [first_row, first_row + rows) of the result.
struct MatrixPart {
  QuantScheme scheme = QuantScheme::kF32;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t num_tiles = 0;   // ceil(rows / 16)
  std::int64_t num_chunks = 0;  // ceil(cols / 64), of each tile
  const std::byte* data =
      nullptr;  // device; tile t's chunk j at (t * num_chunks + j) * chunk_bytes
  float matrix_scale = 1.0F;
  /// Every element times its scale is exactly a finite bf16: fits_bf16() holds for all scales (a
  /// group of zeros may have any MXFP8 scale but NaN) and no MXFP8 element is NaN; false for F32.
  /// Kernels that feed bf16 tensor cores leave other parts to `exact`.
  bool fits_bf16 = false;
};

class CudaMatrix final : public ops::PackedMatrix {
 public:
  CudaMatrix(std::int64_t rows, std::int64_t cols, std::vector<MatrixPart> parts,
             ops::Array<std::byte> data)
      : PackedMatrix(rows, cols), parts_(std::move(parts)), data_(std::move(data)) {}

  std::int64_t num_bytes() const override { return data_.num_bytes(); }
  std::span<const MatrixPart> parts() const { return parts_; }

 private:
  std::vector<MatrixPart> parts_;
  ops::Array<std::byte> data_;
};

}  // namespace winnow::cuda
