// Packed weights hold what the checkpoint holds: every code of every format, and every tile height
// and block length of the kernels, against the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_matrix.h"

namespace winnow::ops {
namespace {

using testing::RandomInputs;
using testing::RandomMatrix;

std::vector<float> multiply(const Backend& backend, const OpContext& context,
                            const MatrixSource& source, const std::vector<float>& x,
                            std::int64_t num_rows) {
  const auto packed = backend.pack(std::span(&source, 1));
  std::vector<float> y = testing::poisoned(num_rows * source.rows);
  backend.linear(context, {.x = x.data(),
                           .x_stride = source.cols,
                           .w = packed.get(),
                           .y = y.data(),
                           .y_stride = source.rows,
                           .num_rows = num_rows});
  return y;
}

/// Rows with a NaN weight or scale are NaN in both; all others equal to the bit.
void expect_same_rows(const MatrixSource& source, const std::vector<float>& x) {
  std::vector<float> expected;
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    const std::vector<float> y = multiply(backend, context, source, x, 1);
    if (expected.empty()) expected = y;
    for (std::size_t row = 0; row < y.size(); ++row) {
      SCOPED_TRACE(row);
      ASSERT_EQ(std::isnan(expected[row]), std::isnan(y[row]));
      if (std::isnan(y[row])) continue;
      ASSERT_TRUE(testing::bits_equal(std::span(&expected[row], 1), std::span(&y[row], 1), {1}));
    }
  });
}

TEST(CpuPack, EveryScaleOfNvfp4WithEveryCode) {
  // Row r: scale byte r in its only group, codes 0 … 15 in turn.
  RandomInputs random(1);
  SCOPED_TRACE(random.describe());
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> scales;
  for (int scale = 0; scale < 256; ++scale) {
    for (int j = 0; j < 8; ++j)
      codes.push_back(static_cast<std::uint8_t>(2 * j | (2 * j + 1) << 4));
    scales.push_back(static_cast<std::uint8_t>(scale));
  }
  expect_same_rows({.scheme = QuantScheme::kNvfp4,
                    .rows = 256,
                    .cols = 16,
                    .data = codes.data(),
                    .scales = scales.data(),
                    .matrix_scale = 0.37F},
                   random.normals(16));
}

TEST(CpuPack, EveryElementAndScaleOfMxfp8) {
  // Row r: scale byte r; element bytes r, r + 1, … so that each value meets each position.
  RandomInputs random(2);
  SCOPED_TRACE(random.describe());
  for (const bool with_nan : {false, true}) {
    std::vector<std::uint8_t> elements;
    std::vector<std::uint8_t> scales;
    for (int row = 0; row < 256; ++row) {
      for (int j = 0; j < 32; ++j) {
        auto code = static_cast<std::uint8_t>(row + j);
        if (!with_nan && (code & 0x7F) == 0x7F) code = 0x55;
        elements.push_back(code);
      }
      scales.push_back(static_cast<std::uint8_t>(row));
    }
    expect_same_rows({.scheme = QuantScheme::kMxfp8,
                      .rows = 256,
                      .cols = 32,
                      .data = elements.data(),
                      .scales = scales.data()},
                     random.normals(32, 1e-3F));
  }
}

TEST(CpuPack, EveryTileHeightAndBlockLength) {
  for (const QuantScheme scheme : testing::kAllSchemes) {
    // One group, a block less one group, a block, and more; BF16 and F32 also odd.
    std::vector<std::int64_t> lengths{32, 96, 128, 160};
    if (scheme == QuantScheme::kNvfp4) lengths = {16, 48, 64, 144};
    if (scheme == QuantScheme::kBF16 || scheme == QuantScheme::kF32) lengths = {1, 31, 33, 70};
    for (const std::int64_t cols : lengths) {
      RandomInputs random(static_cast<std::uint64_t>(cols) * 8 +
                          static_cast<std::uint64_t>(scheme));
      SCOPED_TRACE(random.describe());
      const RandomMatrix matrix(scheme, 150, cols, random);  // a strip of eight panels, then two
      constexpr std::int64_t kMostRows = 26;                 // two full tiles and a rest
      const std::vector<float> x = random.normals(kMostRows * cols);
      std::vector<float> expected;
      testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
        if (expected.empty()) {
          expected = multiply(backend, context, matrix.source(), x, kMostRows);
          return;
        }
        for (std::int64_t rows = 1; rows <= kMostRows; ++rows) {
          const std::vector<float> y = multiply(backend, context, matrix.source(), x, rows);
          ASSERT_TRUE(testing::bits_equal(std::span(expected).first(y.size()), y, {rows, 150}))
              << rows << " x 150 x " << cols;
        }
      });
    }
  }
}

}  // namespace
}  // namespace winnow::ops
