#include "ops/testing/compare_bits.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <string>
#include <vector>

namespace winnow::ops::testing {
namespace {

std::uint32_t pattern(float value) { return std::bit_cast<std::uint32_t>(value); }
std::uint32_t pattern(std::int32_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t pattern(std::byte value) { return std::to_integer<std::uint32_t>(value); }
std::string text(float value) { return fmt::format("{:.9g}", value); }
std::string text(std::int32_t value) { return fmt::format("{}", value); }
std::string text(std::byte value) { return fmt::format("{}", std::to_integer<int>(value)); }

std::string coordinate(std::size_t index, std::initializer_list<std::int64_t> shape) {
  std::vector<std::int64_t> extents(shape);
  auto rest = static_cast<std::int64_t>(index);
  std::string out;
  for (auto extent = extents.rbegin(); extent != extents.rend(); ++extent) {
    out.insert(0, fmt::format("[{}]", rest % *extent));
    rest /= *extent;
  }
  return out;
}

template <typename T>
::testing::AssertionResult compare(std::span<const T> expected, std::span<const T> actual,
                                   std::initializer_list<std::int64_t> shape) {
  if (expected.size() != actual.size()) {
    return ::testing::AssertionFailure()
           << "sizes differ: " << expected.size() << " and " << actual.size();
  }
  std::size_t num_different = 0;
  std::string first;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (pattern(expected[i]) == pattern(actual[i])) continue;
    if (num_different++ == 0) {
      first =
          fmt::format("at {}: expected {} ({:#010x}), got {} ({:#010x})", coordinate(i, shape),
                      text(expected[i]), pattern(expected[i]), text(actual[i]), pattern(actual[i]));
    }
  }
  if (num_different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << num_different << " of " << expected.size() << " differ, first " << first;
}

}  // namespace

::testing::AssertionResult bits_equal(std::span<const float> expected,
                                      std::span<const float> actual,
                                      std::initializer_list<std::int64_t> shape) {
  return compare(expected, actual, shape);
}

::testing::AssertionResult bits_equal(std::span<const std::int32_t> expected,
                                      std::span<const std::int32_t> actual,
                                      std::initializer_list<std::int64_t> shape) {
  return compare(expected, actual, shape);
}

::testing::AssertionResult bits_equal(std::span<const std::byte> expected,
                                      std::span<const std::byte> actual,
                                      std::initializer_list<std::int64_t> shape) {
  return compare(expected, actual, shape);
}

}  // namespace winnow::ops::testing
