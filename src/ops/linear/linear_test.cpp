#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_matrix.h"

namespace winnow::ops {
namespace {

using testing::bits_equal;
using testing::RandomInputs;
using testing::RandomMatrix;

struct Part {
  QuantScheme scheme;
  std::int64_t rows;
};

struct Shape {
  std::int64_t num_rows;
  std::int64_t cols;
  std::vector<Part> parts;
};

std::vector<Shape> shapes() {
  std::vector<Shape> table;
  for (const QuantScheme scheme : testing::kAllSchemes) {
    for (const std::int64_t num_rows : {0, 1, 2, 3, 4, 5, 8, 17, 65}) {
      table.push_back({num_rows, 64, {{scheme, 48}}});
    }
    for (const std::int64_t rows : {1, 2, 15, 16, 17, 31, 33, 63, 65, 100}) {
      table.push_back({3, 96, {{scheme, rows}}});
    }
    table.push_back({2, 32, {{scheme, 5}}});
    table.push_back({9, 1024, {{scheme, 130}}});
    table.push_back({1, 6144, {{scheme, 40}}});
  }
  for (const std::int64_t cols : {1, 7, 31, 33, 50, 100}) {  // no whole groups: unscaled schemes
    table.push_back({3, cols, {{QuantScheme::kF32, 20}, {QuantScheme::kBF16, 7}}});
  }
  table.push_back({2, 16, {{QuantScheme::kNvfp4, 20}}});
  table.push_back({2, 48, {{QuantScheme::kNvfp4, 20}}});
  table.push_back({6,
                   128,
                   {{QuantScheme::kMxfp8, 40},
                    {QuantScheme::kBF16, 9},
                    {QuantScheme::kNvfp4, 16},
                    {QuantScheme::kF32, 33}}});
  return table;
}

/// One shape with its inputs.
class LinearCase {
 public:
  LinearCase(Shape shape, std::uint64_t stream) : shape_(std::move(shape)), random_(stream) {
    for (const Part& part : shape_.parts) {
      matrices_.emplace_back(part.scheme, part.rows, shape_.cols, random_);
      rows_ += part.rows;
    }
    x_ = random_.normals(shape_.num_rows * x_stride());
    before_ = random_.normals(shape_.num_rows * y_stride());
  }

  std::string describe() const { return random_.describe(); }
  std::int64_t y_stride() const { return rows_ + 3; }
  std::int64_t x_stride() const { return shape_.cols + 5; }

  /// All of y, gaps between its rows included.
  std::vector<float> run(const Backend& backend, const OpContext& context, bool accumulate,
                         std::optional<std::int64_t> only_row = std::nullopt) const {
    std::vector<MatrixSource> sources;
    for (const RandomMatrix& matrix : matrices_) sources.push_back(matrix.source());
    const auto packed = backend.pack(sources);
    EXPECT_EQ(packed->rows(), rows_);
    EXPECT_EQ(packed->cols(), shape_.cols);
    std::vector<float> y = accumulate ? before_ : testing::poisoned(shape_.num_rows * y_stride());
    const std::int64_t first = only_row.value_or(0);
    backend.linear(context, {.x = x_.data() + first * x_stride(),
                             .x_stride = x_stride(),
                             .w = packed.get(),
                             .y = y.data() + first * y_stride(),
                             .y_stride = y_stride(),
                             .num_rows = only_row ? 1 : shape_.num_rows,
                             .accumulate = accumulate});
    return y;
  }

  void expect_near_formula(const std::vector<float>& y) const {
    for (std::int64_t t = 0; t < shape_.num_rows; ++t) {
      std::int64_t out = 0;
      for (const RandomMatrix& matrix : matrices_) {
        for (std::int64_t r = 0; r < matrix.source().rows; ++r, ++out) {
          double sum = 0.0;
          double magnitude = 0.0;
          for (std::int64_t k = 0; k < shape_.cols; ++k) {
            const double product =
                double{x_[static_cast<std::size_t>(t * x_stride() + k)]} * matrix.value(r, k);
            sum += product;
            magnitude += std::abs(product);
          }
          // A chain of 32, then one of cols / 16 groups, half an ulp each.
          const double bound = magnitude * 0x1p-24 * (static_cast<double>(shape_.cols) / 16 + 36);
          ASSERT_NEAR(y[static_cast<std::size_t>(t * y_stride() + out)], sum, bound)
              << t << " " << out;
        }
      }
    }
  }

 private:
  Shape shape_;
  RandomInputs random_;
  std::vector<RandomMatrix> matrices_;
  std::int64_t rows_ = 0;
  std::vector<float> x_;
  std::vector<float> before_;
};

TEST(Linear, ReferenceIsNearTheFormula) {
  testing::TestContext context;
  std::uint64_t stream = 0;
  for (const Shape& shape : shapes()) {
    const LinearCase c(shape, stream++);
    SCOPED_TRACE(c.describe());
    c.expect_near_formula(c.run(make_scalar_backend(), context.get(), false));
  }
}

TEST(Linear, EveryBackendEqualsTheReference) {
  testing::TestContext reference_context(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 0;
    for (const Shape& shape : shapes()) {
      const LinearCase c(shape, stream++);
      SCOPED_TRACE(c.describe());
      for (const bool accumulate : {false, true}) {
        const auto expected = c.run(make_scalar_backend(), reference_context.get(), accumulate);
        ASSERT_TRUE(bits_equal(expected, c.run(backend, context, accumulate),
                               {shape.num_rows, c.y_stride()}));
      }
    }
  });
}

TEST(Linear, ARowDoesNotDependOnItsBatch) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    for (const QuantScheme scheme : testing::kAllSchemes) {
      const LinearCase c({19, 64, {{scheme, 50}}}, 77);
      SCOPED_TRACE(c.describe());
      const auto whole = c.run(backend, context, false);
      for (std::int64_t row = 0; row < 19; ++row) {
        const auto alone = c.run(backend, context, false, row);
        const auto at = static_cast<std::size_t>(row * c.y_stride());
        ASSERT_TRUE(
            bits_equal(std::span(whole).subspan(at, 50), std::span(alone).subspan(at, 50), {50}))
            << "row " << row;
      }
    }
  });
}

TEST(Linear, PackingRefusesShapesItCannotHold) {
  RandomInputs random(5);
  const RandomMatrix good(QuantScheme::kMxfp8, 8, 64, random);
  testing::for_each_backend([&](const Backend& backend, const OpContext&) {
    EXPECT_THROW((void)backend.pack({}), Error);
    MatrixSource partial_group = good.source();
    partial_group.cols = 40;
    EXPECT_THROW((void)backend.pack(std::vector{partial_group}), Error);
    MatrixSource no_scales = good.source();
    no_scales.scales = nullptr;
    EXPECT_THROW((void)backend.pack(std::vector{no_scales}), Error);
    MatrixSource other_columns = good.source();
    other_columns.cols = 32;
    EXPECT_THROW((void)backend.pack(std::vector{good.source(), other_columns}), Error);
  });
}

}  // namespace
}  // namespace winnow::ops
