#include "ops/mlp/mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_mlp.h"

namespace winnow::ops {
namespace {

struct Shape {
  QuantScheme scheme;
  std::int64_t num_tokens;
  std::int64_t hidden;
  std::int64_t width;
};

std::vector<Shape> shapes() {
  std::vector<Shape> table;
  for (const QuantScheme scheme : testing::kAllSchemes) {
    for (const std::int64_t num_tokens : {0, 1, 3, 64, 65, 130}) {
      table.push_back({scheme, num_tokens, 64, 96});
    }
    table.push_back({scheme, 5, 256, 32});
    table.push_back({scheme, 2, 32, 320});
  }
  return table;
}

struct MlpCase {
  MlpCase(const Shape& s, std::uint64_t stream)
      : shape(s), random(stream), mlp(s.scheme, s.hidden, s.width, random) {
    h = random.normals(s.num_tokens * s.hidden, 4.0F);  // wide enough that the limit clamps
    before = random.normals(s.num_tokens * s.hidden);
  }

  std::vector<float> run(const Backend& backend, const OpContext& context, bool accumulate,
                         SwigluConstants constants = {.alpha = 1.702F, .limit = 7.0F}) const {
    const testing::PackedMlp packed(backend, mlp);
    std::vector<float> y = accumulate ? before : testing::poisoned(std::ssize(before));
    backend.mlp(context, {.h = h.data(),
                          .num_tokens = shape.num_tokens,
                          .weights = packed.weights(),
                          .constants = constants,
                          .y = y.data(),
                          .accumulate = accumulate});
    return y;
  }

  Shape shape;
  testing::RandomInputs random;
  testing::RandomMlp mlp;
  std::vector<float> h;
  std::vector<float> before;
};

std::vector<double> formula(const MlpCase& c, const SwigluConstants& constants) {
  const double alpha = constants.alpha;
  const double limit = constants.limit;
  std::vector<double> y;
  for (std::int64_t t = 0; t < c.shape.num_tokens; ++t) {
    std::vector<double> activation;
    for (std::int64_t i = 0; i < c.shape.width; ++i) {
      double gate = 0.0;
      double up = 0.0;
      for (std::int64_t k = 0; k < c.shape.hidden; ++k) {
        const double x = c.h[static_cast<std::size_t>(t * c.shape.hidden + k)];
        gate += x * c.mlp.gate.value(i, k);
        up += x * c.mlp.up.value(i, k);
      }
      const double g = std::min(gate, limit);
      const double u = std::clamp(up, -limit, limit);
      activation.push_back((u + constants.offset) * g / (1.0 + std::exp(-alpha * g)));
    }
    for (std::int64_t n = 0; n < c.shape.hidden; ++n) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < c.shape.width; ++i) {
        sum += activation[static_cast<std::size_t>(i)] * c.mlp.down.value(n, i);
      }
      y.push_back(sum);
    }
  }
  return y;
}

TEST(Mlp, EveryBackendEqualsTheReference) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 200;
    for (const Shape& shape : shapes()) {
      const MlpCase c(shape, ++stream);
      SCOPED_TRACE(c.random.describe());
      for (const bool accumulate : {false, true}) {
        ASSERT_TRUE(testing::bits_equal(c.run(make_scalar_backend(), reference.get(), accumulate),
                                        c.run(backend, context, accumulate),
                                        {shape.num_tokens, shape.hidden}));
      }
    }
  });
}

// Fault C4: activation constants that one path does not pass on.
TEST(Mlp, UnusualActivationConstantsReachEveryBackend) {
  constexpr SwigluConstants kSilu{
      .alpha = 1.0F, .limit = std::numeric_limits<float>::infinity(), .offset = 0.0F};
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    for (const QuantScheme scheme : testing::kAllSchemes) {
      const MlpCase c({scheme, 3, 64, 96}, 250);
      SCOPED_TRACE(c.random.describe());
      for (const SwigluConstants constants :
           {SwigluConstants{.alpha = 1.1F, .limit = 0.5F},
            SwigluConstants{.alpha = 1.702F, .limit = 7.0F}, kSilu}) {
        const auto y = c.run(backend, context, false, constants);
        const auto expected = formula(c, constants);
        // A sum's error goes with its terms, which the last constants do not bound.
        double largest = 0.0;
        for (const double value : expected) largest = std::max(largest, std::abs(value));
        for (std::size_t i = 0; i < y.size(); ++i) {
          EXPECT_NEAR(y[i], expected[i], 1e-4 + 2e-6 * largest);
        }
        ASSERT_TRUE(testing::bits_equal(
            c.run(make_scalar_backend(), reference.get(), false, constants), y, {3, 64}));
      }
    }
  });
}

}  // namespace
}  // namespace winnow::ops
