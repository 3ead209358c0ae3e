#include "ops/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

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
  std::int32_t num_experts;
  std::int32_t top_k;
  bool has_shared = true;
};

std::vector<Shape> shapes() {
  std::vector<Shape> table;
  for (const QuantScheme scheme : testing::kAllSchemes) {
    for (const std::int64_t num_tokens : {0, 1, 2, 63, 65, 150}) {
      table.push_back({scheme, num_tokens, 64, 32, 8, 2});
    }
    table.push_back({scheme, 9, 96, 64, 17, 4});
    table.push_back({scheme, 4, 32, 32, 5, 5});
    table.push_back({scheme, 4, 32, 32, 3, 1, false});
  }
  table.push_back({QuantScheme::kNvfp4, 40, 64, 32, 128, 4});
  return table;
}

struct Output {
  std::vector<float> y;
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

struct MoeCase {
  MoeCase(const Shape& s, std::uint64_t stream)
      : shape(s),
        random(stream),
        router(QuantScheme::kF32, s.num_experts, s.hidden, random),
        shared(QuantScheme::kMxfp8, s.hidden, s.width * 2, random) {
    for (std::int32_t e = 0; e < s.num_experts; ++e) {
      experts.emplace_back(s.scheme, s.hidden, s.width, random);
    }
    bias = random.normals(s.num_experts, 0.3F);
    h = random.normals(s.num_tokens * s.hidden, 2.0F);
    before = random.normals(s.num_tokens * s.hidden);
  }

  Output run(const Backend& backend, const OpContext& context, bool reports = true) const {
    const auto packed_router = backend.pack(std::vector{router.source()});
    const testing::PackedMlp packed_shared(backend, shared);
    std::vector<testing::PackedMlp> packed;
    std::vector<MlpWeights> weights;
    for (const testing::RandomMlp& expert : experts) packed.emplace_back(backend, expert);
    for (const testing::PackedMlp& expert : packed) weights.push_back(expert.weights());
    const auto choices = static_cast<std::size_t>(shape.num_tokens * shape.top_k);
    Output out{.y = before,
               .experts = std::vector<std::int32_t>(choices, -7),
               .weights = testing::poisoned(static_cast<std::int64_t>(choices))};
    backend.moe(context, {.h = h.data(),
                          .num_tokens = shape.num_tokens,
                          .router = packed_router.get(),
                          .router_bias = bias.data(),
                          .experts = weights,
                          .shared = shape.has_shared ? packed_shared.weights() : MlpWeights{},
                          .top_k = shape.top_k,
                          .routed_scale = 2.0F,
                          .constants = {.alpha = 1.702F, .limit = 7.0F},
                          .y = out.y.data(),
                          .chosen_experts = reports ? out.experts.data() : nullptr,
                          .chosen_weights = reports ? out.weights.data() : nullptr});
    return out;
  }

  Shape shape;
  testing::RandomInputs random;
  testing::RandomMatrix router;
  testing::RandomMlp shared;
  std::vector<testing::RandomMlp> experts;
  std::vector<float> bias;
  std::vector<float> h;
  std::vector<float> before;
};

TEST(Moe, EveryBackendEqualsTheReference) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 300;
    for (const Shape& shape : shapes()) {
      const MoeCase c(shape, ++stream);
      SCOPED_TRACE(c.random.describe());
      const Output expected = c.run(make_scalar_backend(), reference.get());
      const Output actual = c.run(backend, context);
      ASSERT_TRUE(
          testing::bits_equal(expected.experts, actual.experts, {shape.num_tokens, shape.top_k}));
      ASSERT_TRUE(
          testing::bits_equal(expected.weights, actual.weights, {shape.num_tokens, shape.top_k}));
      ASSERT_TRUE(testing::bits_equal(expected.y, actual.y, {shape.num_tokens, shape.hidden}));
      ASSERT_TRUE(testing::bits_equal(expected.y, c.run(backend, context, false).y,
                                      {shape.num_tokens, shape.hidden}));
    }
  });
}

std::vector<double> expert_formula(const testing::RandomMlp& mlp, std::int64_t hidden,
                                   std::int64_t width, const float* h) {
  std::vector<double> activation(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < width; ++i) {
    double gate = 0.0;
    double up = 0.0;
    for (std::int64_t k = 0; k < hidden; ++k) {
      gate += h[k] * mlp.gate.value(i, k);
      up += h[k] * mlp.up.value(i, k);
    }
    const double g = std::min(gate, 7.0);
    activation[static_cast<std::size_t>(i)] =
        (std::clamp(up, -7.0, 7.0) + 1.0) * g / (1.0 + std::exp(-1.702 * g));
  }
  std::vector<double> y(static_cast<std::size_t>(hidden));
  for (std::int64_t n = 0; n < hidden; ++n) {
    for (std::int64_t i = 0; i < width; ++i) {
      y[static_cast<std::size_t>(n)] +=
          activation[static_cast<std::size_t>(i)] * mlp.down.value(n, i);
    }
  }
  return y;
}

TEST(Moe, ReferenceIsNearTheFormula) {
  const MoeCase c({QuantScheme::kBF16, 20, 64, 32, 8, 3}, 350);
  SCOPED_TRACE(c.random.describe());
  testing::TestContext context;
  const Output out = c.run(make_scalar_backend(), context.get());
  for (std::int64_t t = 0; t < c.shape.num_tokens; ++t) {
    const float* const h = c.h.data() + t * c.shape.hidden;
    std::vector<double> scores;
    for (std::int64_t e = 0; e < c.shape.num_experts; ++e) {
      double logit = 0.0;
      for (std::int64_t k = 0; k < c.shape.hidden; ++k) logit += h[k] * c.router.value(e, k);
      scores.push_back(1.0 / (1.0 + std::exp(-logit)));
    }
    std::vector<std::int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](std::int32_t e) {
      return scores[static_cast<std::size_t>(e)] + c.bias[static_cast<std::size_t>(e)];
    });
    order.resize(3);
    std::ranges::sort(order);
    double sum = 0.0;
    for (const std::int32_t e : order) sum += scores[static_cast<std::size_t>(e)];
    std::vector<double> y = expert_formula(c.shared, c.shape.hidden, c.shape.width * 2, h);
    for (std::size_t slot = 0; slot < 3; ++slot) {
      const auto e = static_cast<std::size_t>(order[slot]);
      EXPECT_EQ(out.experts[static_cast<std::size_t>(t) * 3 + slot], order[slot]);
      EXPECT_NEAR(out.weights[static_cast<std::size_t>(t) * 3 + slot], scores[e] / sum, 1e-6);
      const auto part = expert_formula(c.experts[e], c.shape.hidden, c.shape.width, h);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += 2.0 * scores[e] / sum * part[i];
    }
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto at = static_cast<std::size_t>(t * c.shape.hidden) + i;
      EXPECT_NEAR(out.y[at] - c.before[at], y[i], 1e-4);
    }
  }
}

TEST(Moe, EqualScoresGoToTheLowerExpert) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    MoeCase c({QuantScheme::kF32, 1, 32, 32, 8, 3}, 360);
    std::ranges::fill(c.h, 0.0F);  // every sigmoid is 0.5
    c.bias = {0.0F, 0.1F, 0.0F, 0.0F, 0.0F, 0.1F, 0.0F, 0.0F};
    const Output out = c.run(backend, context);
    EXPECT_EQ(out.experts, (std::vector<std::int32_t>{0, 1, 5}));
    for (const float weight : out.weights) EXPECT_EQ(weight, 0.5F / 1.5F);
  });
}

}  // namespace
}  // namespace winnow::ops
