#include "engine/prefill_pacer.h"

#include <gtest/gtest.h>

#include <limits>

namespace winnow {
namespace {

TEST(PrefillPacer, HasNoLimitWithoutATarget) {
  PrefillPacer pacer(0, 128);
  pacer.observe(4, 1000, 10.0);
  EXPECT_EQ(pacer.limit(), std::numeric_limits<std::int32_t>::max());
}

TEST(PrefillPacer, FindsTheChunkThatFillsTheTarget) {
  // 4 ms of decodes and 10 us a prompt token; 20 ms leave 1,600 tokens: 12 blocks.
  PrefillPacer pacer(0.020, 128);
  EXPECT_EQ(pacer.limit(), 128);
  for (int i = 0; i < 50; ++i) {
    pacer.observe(8, 0, 0.004);
    const std::int32_t tokens = pacer.limit();
    pacer.observe(8, tokens, 0.004 + tokens * 1e-5);
  }
  EXPECT_EQ(pacer.limit(), 12 * 128);
  for (int i = 0; i < 50; ++i) pacer.observe(0, 1000, 1000 * 4e-5);  // the context has grown
  EXPECT_EQ(pacer.limit(), 3 * 128);
}

TEST(PrefillPacer, NeverStopsPrefills) {
  PrefillPacer pacer(0.001, 16);
  pacer.observe(8, 0, 0.5);
  pacer.observe(8, 16, 0.6);
  EXPECT_EQ(pacer.limit(), 16);
}

}  // namespace
}  // namespace winnow
