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
//   NVFP4: 32 lanes × 16 bytes: per lane one 32-bit word a step, value i as nvfp4_code() reads
//          it; then scales, [g] × 8 bytes: row g's four, row g+8's four (one a step, as
//          nvfp4_scale_value() reads them). 576 bytes.
//   MXFP8: 2 halves × 32 lanes × 16 bytes: half h holds steps 2h, 2h+1, eight bytes each, value i
//          in byte mxfp8_byte(i); then scales [g] × 4 bytes: row g's two, row g+8's two (E8M0, one
//          per two steps). 1056 bytes.
//   BF16:  4 steps × 32 lanes × 8 values. 2048 bytes.
//   F32:   the same with 4-byte values. 4096 bytes.
//
// What a word holds is what a tensor-core kernel unpacks in the fewest instructions: see
// nvfp4_pair_bits().
//
// A stack of sources with different schemes is a list of parts, each of whole 16-row tiles.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
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

/// A word that holds values 2 · pair and 2 · pair + 1 of a step's `word` where bf16 has its sign
/// and the ends of exponent and mantissa: signs in bits 15 and 31, magnitudes in bits 6 … 8 and 22
/// … 24; other bits are noise. Two shifts, two rotations and two exclusive ors for all eight
/// values.
constexpr std::uint32_t nvfp4_pair_bits(std::uint32_t word, int pair) {
  switch (pair) {
    case 0:
      return word << 2;
    case 1:
      return word << 6;
    case 2:
      return word ^ (word << 10 | word >> 22);
    default:
      return word ^ (word << 12 | word >> 20);
  }
}

/// Value i's code (sign << 3 | magnitude) in a step's word.
constexpr std::uint32_t nvfp4_code(std::uint32_t word, int i) {
  const std::uint32_t half = nvfp4_pair_bits(word, i / 2) >> (i % 2 * 16);
  return (half >> 15 & 1U) << 3 | (half >> 6 & 7U);
}

/// kNvfp4Places[4i + b] is the word whose value i is 1 << b and whose others are 0; a word is the
/// exclusive or of those of its codes' bits. The inverse of nvfp4_code(), by elimination.
inline constexpr std::array<std::uint32_t, 32> kNvfp4Places = [] {
  std::array<std::uint32_t, 32> codes{};  // what word 1 << j reads as, all eight codes
  std::array<std::uint32_t, 32> words{};  // the word of row j
  for (std::size_t j = 0; j < 32; ++j) {
    words[j] = 1U << j;
    for (int i = 0; i < 8; ++i) codes[j] |= nvfp4_code(words[j], i) << (4 * i);
  }
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::size_t pivot = bit;
    while ((codes[pivot] >> bit & 1U) == 0) ++pivot;
    std::swap(codes[bit], codes[pivot]);
    std::swap(words[bit], words[pivot]);
    for (std::size_t j = 0; j < 32; ++j) {
      if (j == bit || (codes[j] >> bit & 1U) == 0) continue;
      codes[j] ^= codes[bit];
      words[j] ^= words[bit];
    }
  }
  return words;
}();

/// The bits of a step's word that `code` as value i, 0 … 7, stands for; a word is the exclusive or
/// of its eight.
constexpr std::uint32_t nvfp4_place(std::uint32_t code, int i) {
  std::uint32_t word = 0;
  for (int b = 0; b < 4; ++b) {
    if ((code >> b & 1U) != 0)
      word ^= kNvfp4Places[static_cast<std::size_t>(i) * 4 + static_cast<std::size_t>(b)];
  }
  return word;
}

/// NVFP4 scales are packed without sign and without subnormals, five bits of exponent and three of
/// mantissa: decoding is one multiplication and addition of integers. 0 is zero (its group's codes
/// are packed as zeros), 255 NaN; a negative scale's sign moves into its codes.
inline constexpr std::uint8_t kNvfp4ScaleNaN = 255;

/// Of an E4M3 scale, its sign ignored.
constexpr std::uint8_t pack_nvfp4_scale(std::uint8_t e4m3) {
  const int magnitude = e4m3 & 0x7F;
  if (magnitude == 0x7F) return kNvfp4ScaleNaN;
  if (magnitude >= 4)
    return static_cast<std::uint8_t>(magnitude >= 8 ? magnitude + 24 : 2 * magnitude + 16);
  return static_cast<std::uint8_t>(magnitude == 0 ? 0 : magnitude == 1 ? 8 : 4 * magnitude + 8);
}

/// The value of a packed scale, exact.
constexpr float nvfp4_scale_value(std::uint8_t packed) {
  if (packed == 0) return 0.0F;
  return std::bit_cast<float>(
      packed == kNvfp4ScaleNaN ? 0x7FC00000U : (std::uint32_t{packed} << 20) + (117U << 23));
}

/// Byte of a step's eight where value i lies: 0 2 1 3 4 6 5 7.
constexpr int mxfp8_byte(int i) { return (i & 4) | (i & 1) << 1 | (i & 2) >> 1; }

/// Whether a scale byte of a checkpoint lets a fast kernel multiply it into its elements: not NaN;
/// MXFP8 also so that every product is a normal bf16.
constexpr bool fits_bf16(QuantScheme scheme, std::uint8_t scale) {
  if (scheme == QuantScheme::kNvfp4) return (scale & 0x7FU) != 0x7FU;
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

/// Bytes from the start of `part` to that of the next: each starts on a multiple of 256.
constexpr std::int64_t part_bytes(const MatrixPart& part) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t bytes = part.num_tiles * part.num_chunks * chunk_bytes(part.scheme);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

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
