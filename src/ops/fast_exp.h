// e^x and the logistic function in fp32, defined by their operations: each line below is one
// rounding, so a SIMD version that keeps the order gives the same bits. Not libm's exp: its bits
// differ between machines.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.h"

namespace winnow::ops {

// Outside [kExpLowest, kExpHighest] the result is 0 or +inf: the cuts are early by a hair so that
// 2^n below is always a normal number and no result is denormal.
inline constexpr float kExpLowest = -87.0F;  // e^-87 = 1.6e-38
inline constexpr float kExpHighest = 88.0F;  // e^88 = 1.7e38

inline constexpr float kExpLog2E = 0x1.715476p0F;
inline constexpr float kExpRound = 0x1.8p23F;  // adding it leaves the nearest integer (ties even)
inline constexpr float kExpLn2High = 0x1.63p-1F;  // n · high is exact
inline constexpr float kExpLn2Low = -0x1.bd0106p-13F;

// e^r = 1 + r + r²(c2 + c3 r + … + c6 r⁴) on |r| ≤ ln2 / 2: our own minimax fit, 3.3e-9 relative.
inline constexpr float kExpC2 = 0x1.fffffcp-2F;
inline constexpr float kExpC3 = 0x1.55548ap-3F;
inline constexpr float kExpC4 = 0x1.555916p-5F;
inline constexpr float kExpC5 = 0x1.123fc6p-7F;
inline constexpr float kExpC6 = 0x1.6a1a72p-10F;

/// e^x, within 1 ulp for x in [kExpLowest, kExpHighest]; 0 below (also -inf), +inf above, NaN for
/// NaN, exactly 1 at 0.
[[gnu::always_inline]] WINNOW_HOST_DEVICE inline float fast_exp(float x) {
  const float shifted = std::fma(x, kExpLog2E, kExpRound);
  const float n = shifted - kExpRound;
  float r = std::fma(n, -kExpLn2High, x);
  r = std::fma(n, -kExpLn2Low, r);
  float p = kExpC6;
  p = std::fma(p, r, kExpC5);
  p = std::fma(p, r, kExpC4);
  p = std::fma(p, r, kExpC3);
  p = std::fma(p, r, kExpC2);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  // `shifted` holds n in its low mantissa bits; 2^n is built from them (wraps for x out of range,
  // where the result is replaced).
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) + 127U;
  const float scaled = p * std::bit_cast<float>(exponent << 23U);
  const float low_cut = x < kExpLowest ? 0.0F : scaled;
  return x > kExpHighest ? std::numeric_limits<float>::infinity() : low_cut;
}

/// 1 / (1 + e^-x): in [0, 1], 0 for x < -88, exactly 0.5 at 0.
[[gnu::always_inline]] WINNOW_HOST_DEVICE inline float fast_sigmoid(float x) {
  return 1.0F / (1.0F + fast_exp(-x));
}

}  // namespace winnow::ops
