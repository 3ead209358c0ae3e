// What the tests of the fast CUDA kernels share. Those have a summation order of their own, so they
// are near the reference and not equal to it; but one token's result is the same to the bit
// whatever else is in the call.
#pragma once

#include <cmath>
#include <span>

#include "formats/e4m3.h"
#include "ops/testing/backends.h"
#include "ops/testing/hosted_cuda.h"

namespace winnow::ops::testing {

/// |actual - expected| / |expected| over all elements; NaN when an element is.
inline double relative_error(std::span<const float> expected, std::span<const float> actual) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double d = double{actual[i]} - double{expected[i]};
    difference += d * d;
    norm += double{expected[i]} * double{expected[i]};
  }
  return expected.empty() ? 0.0 : std::sqrt(difference / norm);
}

/// Inputs rounded to bf16 are off by 2^-9 at most and by 2^-9 / sqrt(3) on average; sums of
/// thousands average that out, so this leaves room for a second rounding on the way.
inline constexpr double kBf16Error = 4e-3;

/// Values as a query has them that is cast to E4M3 on its way (ops::casts_query).
inline void cast_to_e4m3(std::span<float> values) {
  for (float& x : values) x = decode_e4m3(encode_e4m3(x));
}

/// How many tokens a call has: one, around the tile heights of decode kernels, and prefill.
inline constexpr std::int64_t kTokenCounts[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 130, 300};

#define WINNOW_SKIP_WITHOUT_CUDA() \
  if (!::winnow::ops::testing::has_cuda_device()) GTEST_SKIP() << "no CUDA device"

}  // namespace winnow::ops::testing
