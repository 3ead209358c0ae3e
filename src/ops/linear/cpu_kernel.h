// The inner part of `linear`: some panels of packed weights times some tiles of inputs.
//
// Packed weights. Sixteen outputs form a panel: a vector register holds the same column of sixteen
// rows, so sums run down the columns in order, lane by lane. Up to eight panels form a strip, which
// one thread reads as one stream of 64-byte pieces:
//
//   strip → block of columns → column word → panel → 64 B: a word of each of its 16 rows
//                            → then, once      panel → 64 B: its scales in this block
//
//   scheme  columns of a block   a word (32 bits) holds, from the low bits up   scales
//   NVFP4   64                   columns 8i … 8i+7                              4 × 16 E4M3
//   MXFP8   128                  columns 4i … 4i+3                              4 × 16 E8M0
//   BF16    32                   columns 2i, 2i+1                               none
//   F32     32                   column i                                       none
//
// The last block of a row may be shorter: it has fewer words, its scales still take 64 B.
//
// Inputs. A tile is R rows with columns interleaved: [columns / 16][R][16], the last group padded
// with zeros. For R = 1 that is the row itself.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

inline constexpr int kPanelRows = 16;
inline constexpr int kStripPanels = 8;
inline constexpr int kNumSchemes = 4;  // in the order of QuantScheme

/// Rows a tile may have, ascending.
inline constexpr int kTileRows[] = {1, 2, 3, 4, 6, 8, 12};
inline constexpr int kMaxTileRows = 12;

/// Bytes of one panel in a block of `columns`, which may be a short last block.
struct PanelBlock {
  int64_t columns = 0;  // of a whole block
  int64_t word_columns = 0;
  bool has_scales = false;

  constexpr int64_t bytes(int64_t block_columns) const {
    return (block_columns + word_columns - 1) / word_columns * 64 + (has_scales ? 64 : 0);
  }
};
inline constexpr PanelBlock kPanelBlocks[kNumSchemes] = {
    {32, 1, false}, {32, 2, false}, {128, 4, true}, {64, 8, true}};

/// Part of one call: panels [first_panel, last_panel) of a matrix whose rows share one scheme, for
/// one tile of inputs.
struct LinearTask {
  const uint8_t* weights = nullptr;   // of panel 0
  const float* row_scales = nullptr;  // [panels × 16], multiplies the finished sum
  int64_t num_columns = 0;
  int64_t num_outputs = 0;  // rows of the matrix, without the last panel's padding
  int64_t first_panel = 0;
  int64_t last_panel = 0;
  const float* x = nullptr;  // the tile
  int tile_rows = 0;         // one of kTileRows
  int num_rows = 0;          // of the tile that are wanted
  float* y = nullptr;        // output 0 of the tile's first row
  int64_t y_stride = 0;
  bool accumulate = false;
};

/// By QuantScheme.
struct LinearKernels {
  void (*run[kNumSchemes])(const LinearTask& task);
};

namespace avx512 {
extern const LinearKernels kLinearKernels;
}
namespace avx2 {
extern const LinearKernels kLinearKernels;
}
namespace portable {
extern const LinearKernels kLinearKernels;
}

}  // namespace winnow::ops
