// exp and log from plain IEEE operations in a written order, so that a seed gives the same text on
// every machine, instruction set and device; libm's differ in the last bit between its variants.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace winnow {

/// e^x in fp32 for x ≤ 0 (-inf included), relative error below 2e-7; 0 below -87. Never falls as x
/// rises. Branch-free, so that loops over it vectorise.
[[gnu::always_inline]] WINNOW_HOST_DEVICE inline float exp_weight(float x) {
  constexpr float kLowest = -87.0F;         // e^x would be subnormal soon after
  constexpr float kRound = 12582912.0F;     // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kLn2High = 0.693359375F;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  const float clamped = x < kLowest ? kLowest : x;
  const float shifted = clamped * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;  // minimax on [-ln2/2, ln2/2], Cephes expf
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const auto exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const float scale = std::bit_cast<float>((exponent + 127) << 23);
  return x < kLowest ? 0.0F : p * scale;
}

/// Natural logarithm of a positive normal double, relative error below 1e-15.
WINNOW_HOST_DEVICE inline double natural_log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  auto bits = std::bit_cast<std::uint64_t>(x);
  auto exponent = static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s) with |s| ≤ 0.1716: 12 terms leave 1e-19 of the sum
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double sum = 0.0;
  for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * z;
  return static_cast<double>(exponent) * kLn2 + 2.0 * (s + s * sum);
}

}  // namespace winnow
