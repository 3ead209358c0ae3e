// Weights on a device: the layout that every CUDA kernel reads.
//
// Rows are cut into tiles of 16, columns into chunks of 64 (both padded with zeros); a tile's chunks
// follow each other, so a warp that owns a tile streams it from end to end. Inside a chunk the
// values lie in the order of the A operand of mma.m16n8k16 and wgmma (A from registers). With lane
// l, g = l / 4, c = l % 4, k-step s = 0 … 3 of the chunk, lane l owns in step s the 8 values
//
//   row g: columns 16s + {2c, 2c+1},   row g+8: the same,
//   row g: columns 16s + {2c+8, 2c+9}, row g+8: the same          (values 0 … 7, in this order)
//
//   NVFP4: 32 lanes × 16 bytes: per lane one 32-bit word a step, value i in bits 4i … 4i+3;
//          then scales, [g] × 8 bytes: row g's four, row g+8's four (one E4M3 a step). 576 bytes.
//   MXFP8: 2 halves × 32 lanes × 16 bytes: half h holds steps 2h, 2h+1, eight bytes each;
//          then scales [g] × 4 bytes: row g's two, row g+8's two (E8M0, one per two steps).
//          1056 bytes.
//   BF16:  4 steps × 32 lanes × 8 values. 2048 bytes.
//   F32:   the same with 4-byte values. 4096 bytes.
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
    case QuantScheme::kNvfp4: return 576;
    case QuantScheme::kMxfp8: return 1056;
    case QuantScheme::kBF16: return 2048;
    case QuantScheme::kF32: return 4096;
  }
  return 0;
}

/// One source of the stack: rows [first_row, first_row + rows) of the result.
struct MatrixPart {
  QuantScheme scheme = QuantScheme::kF32;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t num_tiles = 0;         // ceil(rows / 16)
  std::int64_t num_chunks = 0;        // ceil(cols / 64), of each tile
  const std::byte* data = nullptr;    // device; tile t's chunk j at (t * num_chunks + j) * chunk_bytes
  float matrix_scale = 1.0F;
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
