#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace winnow {
namespace {

TEST(RopeCache, FollowsTheRoundingOfThePublicImplementation) {
  constexpr std::int32_t kRotary = 64;
  RopeCache rope(5e6, kRotary, 1 << 20);
  rope.extend_to(1 << 20);
  for (const std::int64_t position : {0, 1, 2, 1023, 1024, 4499, 131071, (1 << 20) - 1}) {
    for (int j = 0; j < kRotary / 2; ++j) {
      const float inverse =
          1.0F / std::pow(5e6F, static_cast<float>(2 * j) / static_cast<float>(kRotary));
      const float angle = static_cast<float>(position) * inverse;
      const auto at = position * kRotary / 2 + j;
      EXPECT_NEAR(rope.table().cos[at], std::cos(double{angle}), 1e-7);
      EXPECT_NEAR(rope.table().sin[at], std::sin(double{angle}), 1e-7);
    }
  }
  EXPECT_EQ(rope.table().cos[0], 1.0F);
  EXPECT_EQ(rope.table().sin[0], 0.0F);
}

// torch.pow and 1 / x in fp32 for theta 5e6 and 64 rotated dims, as PyTorch prints them.
TEST(RopeCache, SmallAngleOfTheFirstPositionIsTheInverseFrequency) {
  RopeCache rope(5e6, 64, 2);
  rope.extend_to(2);
  const float* const sin = rope.table().sin + 32;
  EXPECT_FLOAT_EQ(sin[0], 0.84147098F);     // sin(1)
  EXPECT_FLOAT_EQ(sin[16], 4.4721359e-4F);  // 5e6^-0.5
  EXPECT_FLOAT_EQ(sin[31], 3.2387156e-7F);  // 5e6^(-62/64)
}

TEST(RopeCache, RowsStayAsTheyWereWhenTheTableGrows) {
  RopeCache small(1e4, 16, 5000);
  RopeCache whole(1e4, 16, 5000);
  whole.extend_to(5000);
  for (const std::int64_t end : {1, 2, 1024, 1025, 1024, 4999, 5000}) {
    small.extend_to(end);
    for (std::int64_t i = 0; i < end * 8; ++i) {
      ASSERT_EQ(small.table().cos[i], whole.table().cos[i]);
      ASSERT_EQ(small.table().sin[i], whole.table().sin[i]);
    }
  }
}

}  // namespace
}  // namespace winnow
