// Equality of two results to the bit; a failure names the coordinate, both values and both
// patterns.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <span>

namespace winnow::ops::testing {

/// Floats compare by their bits: NaN equals the same NaN, and 0 differs from -0. `shape` is the
/// row-major shape of both.
::testing::AssertionResult bits_equal(std::span<const float> expected,
                                      std::span<const float> actual,
                                      std::initializer_list<std::int64_t> shape);
::testing::AssertionResult bits_equal(std::span<const std::int32_t> expected,
                                      std::span<const std::int32_t> actual,
                                      std::initializer_list<std::int64_t> shape);
::testing::AssertionResult bits_equal(std::span<const std::byte> expected,
                                      std::span<const std::byte> actual,
                                      std::initializer_list<std::int64_t> shape);

}  // namespace winnow::ops::testing
