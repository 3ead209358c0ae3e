#include "ops/x86/memory_kernel.h"

#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

uint32_t read(const void* data, int64_t num_bytes) {
  constexpr int kStreams = 4;
  constexpr int64_t kBytes = 64;
  const auto* const bytes = static_cast<const uint8_t*>(data);
  Words sums[kStreams];
  WINNOW_UNROLL
  for (int i = 0; i < kStreams; ++i) sums[i] = broadcast_word(0);
  for (int64_t at = 0; at < num_bytes; at += kStreams * kBytes) {
    WINNOW_UNROLL
    for (int i = 0; i < kStreams; ++i) {
      sums[i] = add_words(sums[i], load_words(bytes + at + i * kBytes));
      __builtin_prefetch(bytes + at + i * kBytes + 4096);
    }
  }
  const Words sum = add_words(add_words(sums[0], sums[1]), add_words(sums[2], sums[3]));
  float lanes[kLanes];
  store(lanes, from_bits(sum));
  uint32_t total = 0;
  for (int i = 0; i < kLanes; ++i) {
    uint32_t lane;
    __builtin_memcpy(&lane, &lanes[i], sizeof lane);
    total += lane;
  }
  return total;
}

float multiply_add(int64_t num_steps) {
  constexpr int kSums = kMultiplyAddsPerStep / kLanes;
  // Eight registers hold no twelve sums and two factors: each step is then made of two halves.
  constexpr int kLive = kRegisters < 32 ? kSums / 2 : kSums;
  Vec sums[kLive];
  WINNOW_UNROLL
  for (int i = 0; i < kLive; ++i) sums[i] = broadcast(static_cast<float>(i));
  Vec factor = broadcast(0.5F);
  for (int64_t step = 0; step < num_steps * (kSums / kLive); ++step) {
    WINNOW_UNROLL
    for (int i = 0; i < kLive; ++i) sums[i] = fma(sums[i], factor, factor);
  }
  Vec sum = sums[0];
  WINNOW_UNROLL
  for (int i = 1; i < kLive; ++i) sum = add(sum, sums[i]);
  return sum_lanes(sum);
}

}  // namespace

extern const MemoryKernels kMemoryKernels = {.read = read, .multiply_add = multiply_add};

}  // namespace winnow::ops::WINNOW_ISA
