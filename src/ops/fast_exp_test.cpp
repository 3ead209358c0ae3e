#include "ops/fast_exp.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace winnow::ops {
namespace {

TEST(FastExp, IsWithinOneUlpOfTheExactValue) {
  double worst = 0.0;
  // Every 997th float of the whole range, both signs.
  for (const float sign : {1.0F, -1.0F}) {
    const float end = sign > 0.0F ? kExpHighest : -kExpLowest;
    for (std::uint32_t bits = 0; bits <= std::bit_cast<std::uint32_t>(end); bits += 997) {
      const float x = sign * std::bit_cast<float>(bits);
      const double exact = std::exp(static_cast<double>(x));
      const float rounded = static_cast<float>(exact);
      const double ulp =
          static_cast<double>(std::nextafter(rounded, std::numeric_limits<float>::infinity())) -
          static_cast<double>(rounded);
      worst = std::max(worst, std::abs(static_cast<double>(fast_exp(x)) - exact) / ulp);
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LT(worst, 1.0);
}

TEST(FastExp, EdgesAreZeroInfinityOneAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fast_exp(-kInfinity), 0.0F);
  EXPECT_EQ(fast_exp(-1e30F), 0.0F);
  EXPECT_EQ(fast_exp(std::nextafter(kExpLowest, -kInfinity)), 0.0F);
  EXPECT_GE(fast_exp(kExpLowest), std::numeric_limits<float>::min());
  EXPECT_TRUE(std::isfinite(fast_exp(kExpHighest)));
  EXPECT_EQ(fast_exp(std::nextafter(kExpHighest, kInfinity)), kInfinity);
  EXPECT_EQ(fast_exp(kInfinity), kInfinity);
  EXPECT_EQ(fast_exp(0.0F), 1.0F);
  EXPECT_EQ(fast_exp(-0.0F), 1.0F);
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(FastSigmoid, IsMonotoneAtItsEndsAndHalfAtZero) {
  EXPECT_EQ(fast_sigmoid(0.0F), 0.5F);
  EXPECT_EQ(fast_sigmoid(200.0F), 1.0F);
  EXPECT_EQ(fast_sigmoid(-200.0F), 0.0F);
}

}  // namespace
}  // namespace winnow::ops
