#include "ops/testing/random_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <random>

#include "base/random.h"

namespace winnow::ops::testing {

std::uint64_t run_seed() {
  static const std::uint64_t kSeed = [] {
    if (const char* text = std::getenv("WINNOW_SEED")) return std::strtoull(text, nullptr, 10);
    return static_cast<unsigned long long>(std::random_device()());
  }();
  return kSeed;
}

RandomInputs::RandomInputs(std::uint64_t stream, std::uint64_t seed)
    : seed_(seed), stream_(stream) {}

std::uint32_t RandomInputs::bits() {
  const Philox4 draws = philox4x32(seed_, {drawn_ / 4, static_cast<std::uint32_t>(stream_),
                                           static_cast<std::uint32_t>(stream_ >> 32), 0});
  return draws[drawn_++ % 4];
}

std::int64_t RandomInputs::below(std::int64_t end) {
  return static_cast<std::int64_t>(std::uint64_t{bits()} * static_cast<std::uint64_t>(end) >> 32);
}

float RandomInputs::uniform(float low, float high) {
  return low + (high - low) * static_cast<float>(bits() >> 8) * 0x1p-24F;
}

float RandomInputs::normal() {
  // The sum of twelve uniforms of width 1 has variance 1.
  float sum = -6.0F;
  for (int i = 0; i < 3; ++i) {
    const std::uint32_t draw = bits();
    for (int byte = 0; byte < 4; ++byte) {
      sum += (static_cast<float>(draw >> (8 * byte) & 0xFFU) + 0.5F) / 256.0F;
    }
  }
  return sum;
}

std::vector<float> RandomInputs::normals(std::int64_t count, float scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = scale * normal();
  return values;
}

std::vector<std::uint8_t> RandomInputs::bytes(std::int64_t count) {
  std::vector<std::uint8_t> values(static_cast<std::size_t>(count));
  for (std::uint8_t& value : values) value = static_cast<std::uint8_t>(bits());
  return values;
}

std::vector<std::int32_t> RandomInputs::permutation(std::int32_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
  }
  return order;
}

std::string RandomInputs::describe() const {
  return fmt::format("WINNOW_SEED={} stream {}", seed_, stream_);
}

void poison(std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0xFF}); }

std::vector<float> poisoned(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count),
                            std::numeric_limits<float>::quiet_NaN());
}

}  // namespace winnow::ops::testing
