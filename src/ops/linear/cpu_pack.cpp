// Packs checkpoint matrices into the panels of cpu_kernel.h. Values are kept as they are: only
// their places change, and the sign of a (never seen) negative NVFP4 scale, which moves to its
// codes.
#include <algorithm>
#include <cstring>
#include <limits>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/linear/check_sources.h"
#include "ops/linear/cpu_kernel.h"
#include "ops/linear/cpu_linear.h"

namespace winnow::cpu {
namespace {

using ops::kPanelRows;
using ops::kStripPanels;
using ops::PanelBlock;

const PanelBlock& block_of(QuantScheme scheme) {
  return ops::kPanelBlocks[static_cast<std::size_t>(scheme)];
}

std::int64_t panel_bytes(QuantScheme scheme, std::int64_t cols) {
  const PanelBlock& block = block_of(scheme);
  const std::int64_t rest = cols % block.columns;
  return cols / block.columns * block.bytes(block.columns) + (rest > 0 ? block.bytes(rest) : 0);
}

std::int64_t panels_of(std::int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

/// Bytes of a row's elements in the checkpoint.
std::int64_t row_bytes(const ops::MatrixSource& source) {
  switch (source.scheme) {
    case QuantScheme::kF32:
      return 4 * source.cols;
    case QuantScheme::kBF16:
      return 2 * source.cols;
    case QuantScheme::kMxfp8:
      return source.cols;
    case QuantScheme::kNvfp4:
      return source.cols / 2;
  }
  return 0;
}

/// Writes one source's panels at `out`.
class SegmentPacker {
 public:
  SegmentPacker(const ops::MatrixSource& source, Segment& segment, std::uint8_t* out)
      : source_(source),
        block_(block_of(source.scheme)),
        group_(ops::group_columns(source.scheme)),
        row_bytes_(row_bytes(source)),
        segment_(segment),
        out_(out) {}

  void run() {
    const std::int64_t bytes = panel_bytes(source_.scheme, source_.cols);
    for (std::int64_t strip = 0; strip < segment_.num_panels; strip += kStripPanels) {
      const std::int64_t count = std::min<std::int64_t>(kStripPanels, segment_.num_panels - strip);
      pack_strip(strip, count, out_ + strip * bytes);
    }
  }

 private:
  void pack_strip(std::int64_t first_panel, std::int64_t count, std::uint8_t* out) {
    for (std::int64_t begin = 0; begin < source_.cols; begin += block_.columns) {
      const std::int64_t columns = std::min(block_.columns, source_.cols - begin);
      for (std::int64_t p = 0; p < count; ++p) {
        pack_block((first_panel + p) * kPanelRows, begin, columns, count * 64, out + p * 64);
      }
      out += count * block_.bytes(columns);
    }
  }

  /// One panel of a block; its pieces lie `step` bytes apart.
  void pack_block(std::int64_t first_row, std::int64_t begin, std::int64_t columns,
                  std::int64_t step, std::uint8_t* out) {
    const std::int64_t words = (columns + block_.word_columns - 1) / block_.word_columns;
    const std::int64_t rows = std::min<std::int64_t>(kPanelRows, source_.rows - first_row);
    const std::int64_t begin_byte = row_bytes_ * begin / source_.cols;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* const row = static_cast<const std::uint8_t*>(source_.data) +
                              (first_row + r) * row_bytes_ + begin_byte;
      for (std::int64_t i = 0; i < words; ++i) {
        const std::int64_t left = row_bytes_ - begin_byte - 4 * i;  // an odd BF16 row ends early
        std::memcpy(out + i * step + r * 4, row + 4 * i,
                    static_cast<std::size_t>(std::min<std::int64_t>(4, left)));
      }
      if (!block_.has_scales) continue;
      std::uint8_t* const scales = out + words * step + r;
      const std::uint8_t* const stored =
          source_.scales + (first_row + r) * (source_.cols / group_) + begin / group_;
      for (std::int64_t g = 0; g < columns / group_; ++g) {
        scales[g * kPanelRows] = stored[g] & scale_mask();
        check_scale(first_row + r, stored[g]);
        if ((stored[g] & ~scale_mask()) != 0) flip_signs(out + g * 2 * step + r * 4, step);
      }
      check_elements(first_row + r, row, columns);
    }
  }

  /// Bits of a scale that the kernels read: a negative E4M3 scale becomes a positive one.
  std::uint8_t scale_mask() const { return source_.scheme == QuantScheme::kNvfp4 ? 0x7F : 0xFF; }

  void check_scale(std::int64_t row, std::uint8_t scale) {
    const bool is_nan =
        source_.scheme == QuantScheme::kMxfp8 ? scale == kE8m0NaN : (scale & 0x7F) == kE4m3NaN;
    if (is_nan) mark_nan(row);
  }

  /// Of the sixteen NVFP4 codes of a row's group: two words.
  static void flip_signs(std::uint8_t* word, std::int64_t step) {
    for (std::int64_t i = 0; i < 8; ++i) word[i / 4 * step + i % 4] ^= 0x88;
  }

  void check_elements(std::int64_t row, const std::uint8_t* elements, std::int64_t columns) {
    if (source_.scheme != QuantScheme::kMxfp8) return;
    for (std::int64_t i = 0; i < columns; ++i) {
      if ((elements[i] & 0x7F) == kE4m3NaN) mark_nan(row);
    }
  }

  void mark_nan(std::int64_t row) {
    segment_.row_scales[static_cast<std::size_t>(row)] = std::numeric_limits<float>::quiet_NaN();
  }

  const ops::MatrixSource& source_;
  const PanelBlock& block_;
  std::int64_t group_;
  std::int64_t row_bytes_;
  Segment& segment_;
  std::uint8_t* out_;
};

static_assert(static_cast<int>(QuantScheme::kF32) == 0 &&
                  static_cast<int>(QuantScheme::kBF16) == 1 &&
                  static_cast<int>(QuantScheme::kMxfp8) == 2 &&
                  static_cast<int>(QuantScheme::kNvfp4) == 3,
              "kPanelBlocks and LinearKernels are indexed by it");

}  // namespace

Matrix::Matrix(std::span<const ops::MatrixSource> stacked)
    : PackedMatrix(ops::stacked_rows(stacked), stacked.front().cols) {
  std::int64_t bytes = 0;
  for (const ops::MatrixSource& source : stacked) {
    bytes += panels_of(source.rows) * panel_bytes(source.scheme, source.cols);
  }
  weights_ = Buffer(bytes, "packed weights");
  auto* out = weights_.as<std::uint8_t>();
  std::int64_t first_output = 0;
  for (const ops::MatrixSource& source : stacked) {
    Segment segment{.scheme = source.scheme,
                    .first_output = first_output,
                    .num_outputs = source.rows,
                    .num_panels = panels_of(source.rows),
                    .weights = out,
                    .row_scales = {}};
    const float scale = source.scheme == QuantScheme::kNvfp4 ? source.matrix_scale : 1.0F;
    segment.row_scales.assign(static_cast<std::size_t>(segment.num_panels * kPanelRows), scale);
    SegmentPacker(source, segment, out).run();
    out += segment.num_panels * panel_bytes(source.scheme, source.cols);
    first_output += source.rows;
    segments_.push_back(std::move(segment));
  }
}

std::unique_ptr<ops::PackedMatrix> pack(std::span<const ops::MatrixSource> stacked) {
  ops::check_sources(stacked);
  return std::make_unique<Matrix>(stacked);
}

}  // namespace winnow::cpu
