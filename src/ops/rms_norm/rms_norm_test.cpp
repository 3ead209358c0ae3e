#include "ops/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_inputs.h"

namespace winnow::ops {
namespace {

struct Shape {
  std::int64_t num_rows;
  std::int64_t width;
};

constexpr Shape kShapes[] = {{0, 128}, {1, 128},  {3, 128},  {65, 128},  {2, 1},
                             {2, 15},  {2, 16},   {2, 17},   {2, 31},    {3, 33},
                             {5, 250}, {4, 6144}, {270, 96}, {301, 500}, {2, 9000}};

std::vector<float> run(const Backend& backend, const OpContext& context, const Shape& shape,
                       std::uint64_t stream, bool in_place, float offset = 1.0F) {
  testing::RandomInputs random(stream);
  std::vector<float> x = random.normals(shape.num_rows * shape.width, 3.0F);
  const std::vector<float> weight = random.normals(shape.width);
  std::vector<float> out = testing::poisoned(shape.num_rows * shape.width);
  backend.rms_norm(context, {.x = x.data(),
                             .weight = weight.data(),
                             .eps = 1e-6F,
                             .offset = offset,
                             .num_rows = shape.num_rows,
                             .width = shape.width,
                             .out = in_place ? x.data() : out.data()});
  return in_place ? x : out;
}

TEST(RmsNorm, EveryBackendEqualsTheReferenceInPlaceToo) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 100;
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::RandomInputs(++stream).describe());
      for (const float offset : {1.0F, 0.0F}) {
        const auto expected =
            run(make_scalar_backend(), reference.get(), shape, stream, false, offset);
        for (const bool in_place : {false, true}) {
          ASSERT_TRUE(testing::bits_equal(expected,
                                          run(backend, context, shape, stream, in_place, offset),
                                          {shape.num_rows, shape.width}));
        }
      }
    }
  });
}

TEST(RmsNorm, ReferenceIsNearTheFormula) {
  testing::TestContext context(1);
  constexpr Shape kShape{7, 250};
  testing::RandomInputs random(99);
  const std::vector<float> x = random.normals(kShape.num_rows * kShape.width, 3.0F);
  const std::vector<float> weight = random.normals(kShape.width);
  const auto out = run(make_scalar_backend(), context.get(), kShape, 99, false);
  const auto whole = run(make_scalar_backend(), context.get(), kShape, 99, false, 0.0F);
  for (std::int64_t row = 0; row < kShape.num_rows; ++row) {
    double squares = 0.0;
    for (std::int64_t i = 0; i < kShape.width; ++i) {
      const double value = x[static_cast<std::size_t>(row * kShape.width + i)];
      squares += value * value;
    }
    for (std::int64_t i = 0; i < kShape.width; ++i) {
      const auto at = static_cast<std::size_t>(row * kShape.width + i);
      const double normed =
          double{x[at]} / std::sqrt(squares / static_cast<double>(kShape.width) + 1e-6);
      const double factor = weight[static_cast<std::size_t>(i)];
      const double expected = normed * (1.0 + factor);
      EXPECT_NEAR(whole[at], normed * factor, 4e-6 * std::abs(normed * factor) + 1e-7);
      EXPECT_NEAR(out[at], expected, 4e-6 * std::abs(expected) + 1e-7);
    }
  }
}

TEST(RmsNorm, ARowOfZerosStaysZero) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::vector<float> x(64, 0.0F);
    const std::vector<float> weight(64, 0.5F);
    backend.rms_norm(context, {.x = x.data(),
                               .weight = weight.data(),
                               .eps = 1e-6F,
                               .num_rows = 1,
                               .width = 64,
                               .out = x.data()});
    EXPECT_EQ(x, std::vector<float>(64, 0.0F));
  });
}

}  // namespace
}  // namespace winnow::ops
