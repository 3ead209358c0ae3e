#include "ops/op_context.h"

#include <gtest/gtest.h>

#include <cstring>

namespace winnow::ops {
namespace {

TEST(Scratch, KeepsOneBufferAfterTheLargestRound) {
  Scratch scratch;
  scratch.take(1000);
  scratch.take(3000);
  scratch.reset();
  // Both fit the merged buffer now, side by side.
  std::byte* const first = scratch.take(1000);
  std::byte* const second = scratch.take(3000);
  EXPECT_EQ(second, first + 1024);
  scratch.reset();
  EXPECT_EQ(scratch.take(10), first);
}

TEST(Scratch, RewindGivesTheSameBytesAgain) {
  Scratch scratch;
  scratch.take(1 << 16);
  scratch.reset();
  std::byte* const kept = scratch.take(100);
  const Scratch::Mark mark = scratch.mark();
  std::byte* const round = scratch.take(200);
  scratch.rewind(mark);
  EXPECT_EQ(scratch.take(200), round);
  EXPECT_NE(round, kept);
}

TEST(Scratch, RoundsThatOverflowKeepEarlierBytesAndAreCountedOnce) {
  Scratch scratch;
  std::byte* const kept = scratch.take(64);
  std::memset(kept, 7, 64);
  for (int round = 0; round < 3; ++round) {
    const Scratch::Mark mark = scratch.mark();
    std::memset(scratch.take(4096), 9, 4096);
    scratch.rewind(mark);
  }
  EXPECT_EQ(kept[63], std::byte{7});
  scratch.reset();
  // 64 + 4096 bytes were needed at once: one buffer of them suffices.
  std::byte* const first = scratch.take(64);
  EXPECT_EQ(scratch.take(4096), first + 64);
}

}  // namespace
}  // namespace winnow::ops
