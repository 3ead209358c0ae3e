#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/linear/check_sources.h"
#include "ops/linear/linear.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"

namespace winnow::scalar {
namespace {

constexpr std::int64_t kTileRows = 16;   // outputs computed side by side
constexpr std::int64_t kTileTokens = 4;  // inputs that share one pass over a tile
constexpr std::int64_t kTaskTokens = 64;

/// Sixteen rows of one source: elements without their scales, [cols][16], and scales [groups][16].
struct Tile {
  std::int64_t first_row = 0;  // of the stacked matrix
  std::int64_t num_rows = 0;   // fewer in the last tile of a source; the rest is zero
  std::int64_t group = 0;      // columns of one partial sum
  float matrix_scale = 1.0F;
  bool has_scales = false;
  std::vector<float> elements;
  std::vector<float> scales;
};

class Matrix final : public ops::PackedMatrix {
 public:
  explicit Matrix(std::span<const ops::MatrixSource> stacked)
      : PackedMatrix(ops::stacked_rows(stacked), stacked.front().cols) {
    std::int64_t row = 0;
    for (const ops::MatrixSource& source : stacked) {
      for (std::int64_t first = 0; first < source.rows; first += kTileRows) {
        tiles_.push_back(make_tile(source, first, row + first));
      }
      row += source.rows;
    }
  }

  std::span<const Tile> tiles() const { return tiles_; }

  std::int64_t num_bytes() const override {
    std::size_t floats = 0;
    for (const Tile& tile : tiles_) floats += tile.elements.size() + tile.scales.size();
    return static_cast<std::int64_t>(floats * sizeof(float));
  }

 private:
  static float element(const ops::MatrixSource& source, std::int64_t row, std::int64_t col) {
    const std::int64_t at = row * source.cols + col;
    const auto* const bytes = static_cast<const std::uint8_t*>(source.data);
    switch (source.scheme) {
      case QuantScheme::kF32:
        return static_cast<const float*>(source.data)[at];
      case QuantScheme::kBF16:
        return decode_bf16(static_cast<const Bf16*>(source.data)[at]);
      case QuantScheme::kMxfp8:
        return kE4m3Values[bytes[at]];
      case QuantScheme::kNvfp4:
        return decode_e2m1(static_cast<std::uint8_t>(bytes[at / 2] >> (col % 2 * 4)));
    }
    return 0.0F;
  }

  static Tile make_tile(const ops::MatrixSource& source, std::int64_t first, std::int64_t row) {
    Tile tile{.first_row = row,
              .num_rows = std::min(kTileRows, source.rows - first),
              .group = ops::group_columns(source.scheme),
              .matrix_scale = source.scheme == QuantScheme::kNvfp4 ? source.matrix_scale : 1.0F,
              .has_scales = ops::has_scales(source.scheme),
              .elements = {},
              .scales = {}};
    tile.elements.resize(static_cast<std::size_t>(source.cols * kTileRows));
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      for (std::int64_t k = 0; k < source.cols; ++k) {
        tile.elements[static_cast<std::size_t>(k * kTileRows + r)] = element(source, first + r, k);
      }
    }
    if (!tile.has_scales) return tile;
    const std::int64_t groups = source.cols / tile.group;
    tile.scales.resize(static_cast<std::size_t>(groups * kTileRows));
    for (std::int64_t r = 0; r < tile.num_rows; ++r) {
      for (std::int64_t g = 0; g < groups; ++g) {
        const std::uint8_t code = source.scales[(first + r) * groups + g];
        tile.scales[static_cast<std::size_t>(g * kTileRows + r)] =
            source.scheme == QuantScheme::kMxfp8 ? decode_e8m0(code) : kE4m3Values[code];
      }
    }
    return tile;
  }

  std::vector<Tile> tiles_;
};

using Sums = std::array<std::array<float, kTileRows>, kTileTokens>;

/// sums[i][r] = Σ_k x_i[k] · W[r][k] in the order that linear.h states.
WINNOW_FMA_CLONES
void multiply_tile(const Tile& tile, std::int64_t cols,
                   const std::array<const float*, kTileTokens>& x, Sums& sums) {
  Sums total{};
  for (std::int64_t begin = 0; begin < cols; begin += tile.group) {
    const std::int64_t end = std::min(cols, begin + tile.group);
    Sums partial{};
    for (std::int64_t k = begin; k < end; ++k) {
      const float* const w = tile.elements.data() + k * kTileRows;
      for (std::size_t i = 0; i < kTileTokens; ++i) {
        const float value = x[i][k];
        for (std::size_t r = 0; r < kTileRows; ++r) {
          partial[i][r] = std::fma(value, w[r], partial[i][r]);
        }
      }
    }
    if (tile.has_scales) {
      const float* const scale = tile.scales.data() + begin / tile.group * kTileRows;
      for (std::size_t i = 0; i < kTileTokens; ++i) {
        for (std::size_t r = 0; r < kTileRows; ++r) {
          total[i][r] = std::fma(scale[r], partial[i][r], total[i][r]);
        }
      }
    } else {
      for (std::size_t i = 0; i < kTileTokens; ++i) {
        for (std::size_t r = 0; r < kTileRows; ++r) total[i][r] += partial[i][r];
      }
    }
  }
  sums = total;
}

void multiply_rows(const Tile& tile, const ops::LinearParams& params, std::int64_t first,
                   std::int64_t last) {
  for (std::int64_t t = first; t < last; t += kTileTokens) {
    const std::int64_t count = std::min(kTileTokens, last - t);
    std::array<const float*, kTileTokens> x{};
    for (std::int64_t i = 0; i < kTileTokens; ++i) {
      x[static_cast<std::size_t>(i)] = params.x + (t + std::min(i, count - 1)) * params.x_stride;
    }
    Sums sums;
    multiply_tile(tile, params.w->cols(), x, sums);
    for (std::int64_t i = 0; i < count; ++i) {
      float* const y = params.y + (t + i) * params.y_stride + tile.first_row;
      for (std::int64_t r = 0; r < tile.num_rows; ++r) {
        const float value =
            sums[static_cast<std::size_t>(i)][static_cast<std::size_t>(r)] * tile.matrix_scale;
        y[r] = params.accumulate ? y[r] + value : value;
      }
    }
  }
}

}  // namespace

std::unique_ptr<ops::PackedMatrix> pack(std::span<const ops::MatrixSource> stacked) {
  ops::check_sources(stacked);
  return std::make_unique<Matrix>(stacked);
}

void linear(const ops::OpContext& context, const ops::LinearParams& params) {
  const std::span<const Tile> tiles = static_cast<const Matrix*>(params.w)->tiles();
  const auto num_tiles = static_cast<std::int64_t>(tiles.size());
  const std::int64_t num_chunks = (params.num_rows + kTaskTokens - 1) / kTaskTokens;
  context.pool->parallel_for(num_tiles * num_chunks, [&](std::int64_t task, int) {
    const std::int64_t first = task % num_chunks * kTaskTokens;
    multiply_rows(tiles[static_cast<std::size_t>(task / num_chunks)], params, first,
                  std::min(params.num_rows, first + kTaskTokens));
  });
}

}  // namespace winnow::scalar
