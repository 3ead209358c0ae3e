// The NVFP4 (cache and weight) and MXFP8 quantisers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_cache.h"
#include "formats/nvfp4_weight.h"

namespace winnow {
namespace {

float random_normal_like(std::uint32_t i) {
  const Philox4 r = philox4x32(4, {i, 0, 0, 0});
  float sum = 0.F;
  for (const std::uint32_t word : r) sum += static_cast<float>(word >> 8) * 0x1p-24F - 0.5F;
  return sum;
}

std::uint8_t nibble(const std::array<std::uint8_t, 8>& codes, std::size_t i) {
  return static_cast<std::uint8_t>(codes[i / 2] >> (4 * (i % 2)) & 0xF);
}

TEST(Nvfp4Cache, AllZeroGroupStoresTheSmallestScale) {
  const std::array<float, 16> zero{};
  const Nvfp4Block block = quantize_nvfp4(zero);
  EXPECT_EQ(block.scale, 0x01);
  for (const std::uint8_t code : block.codes) EXPECT_EQ(code, 0);
}

TEST(Nvfp4Cache, ValueTwoJIsTheLowNibble) {
  std::array<float, 16> x{};
  x[2] = 6.F;
  x[5] = -3.F;
  const Nvfp4Block block = quantize_nvfp4(x);
  EXPECT_EQ(block.scale, 0x38);
  EXPECT_EQ(block.codes, (std::array<std::uint8_t, 8>{0, 0x07, 0xD0, 0, 0, 0, 0, 0}));
}

// spec/model.md trap 22: ties go to even by comparing with t * scale, and -0 is never stored.
TEST(Nvfp4Cache, TiesToEvenAndNoNegativeZero) {
  std::array<float, 16> x = {6.F,  0.25F, 0.75F,  1.25F, 1.75F, 2.5F,  3.5F,   5.F,
                             -6.F, -0.F,  -0.25F, -0.2F, -5.F,  -2.5F, -0.75F, -1.25F};
  const Nvfp4Block block = quantize_nvfp4(x);
  const std::array<std::uint8_t, 16> expected = {7,  0, 2, 2, 4,  4,  6,  6,
                                                 15, 0, 0, 0, 14, 12, 10, 10};
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(nibble(block.codes, i), expected[i]) << i;
}

TEST(Nvfp4Cache, ScaleClampsBothEnds) {
  EXPECT_EQ(nvfp4_cache_scale(0.F), 0x01);
  EXPECT_EQ(nvfp4_cache_scale(1e-30F), 0x01);
  EXPECT_EQ(nvfp4_cache_scale(6.F * 448.F), 0x7E);
  EXPECT_EQ(nvfp4_cache_scale(std::numeric_limits<float>::max()), 0x7E);
  // A scale that rounds down lets the largest value exceed 6 * scale: it saturates.
  std::array<float, 16> x{};
  x[0] = 6.F * 1.06F;
  const Nvfp4Block block = quantize_nvfp4(x);
  EXPECT_EQ(block.scale, 0x38);
  EXPECT_EQ(block.codes[0], 7);
}

TEST(Nvfp4Cache, RequantisingItsOwnOutputIsStable) {
  for (std::uint32_t g = 0; g < 2000; ++g) {
    std::array<float, 16> x;
    for (std::uint32_t i = 0; i < 16; ++i) x[i] = random_normal_like(g * 16 + i);
    const Nvfp4Block block = quantize_nvfp4(x);
    std::array<float, 16> y;
    dequantize_exact(block, y);
    for (std::size_t i = 0; i < 16; ++i) {
      // Half a step at the value's own magnitude, or saturation of the largest.
      EXPECT_LE(std::fabs(x[i] - y[i]),
                std::max(std::fabs(x[i]) / 4.F, decode_e4m3(block.scale) / 4.F) * 1.01F);
      EXPECT_NE(nibble(block.codes, i), 8);
    }
  }
}

TEST(Nvfp4CacheDeathTest, NonFiniteInputIsTheCallersBug) {
  std::array<float, 16> x{};
  x[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_DEATH(quantize_nvfp4(x), "finite");
}

TEST(Nvfp4Weight, GlobalScaleBringsTheLargestBlockScaleTo448) {
  std::array<float, 16> x{};
  x[7] = -0.037F;
  const float global = nvfp4_weight_global_scale(0.037F);
  EXPECT_EQ(global, 2688.F / 0.037F);
  std::array<std::uint8_t, 8> codes;
  std::uint8_t scale = 0;
  quantize_nvfp4_weight(x, global, codes, scale);
  EXPECT_EQ(scale, 0x7E);
  EXPECT_EQ(nibble(codes, 7), 15);
  std::array<float, 16> y;
  dequantize_nvfp4_weight(codes, scale, multiplier_of_global_scale(global), y);
  EXPECT_NEAR(y[7], -0.037F, 1e-8F);
}

TEST(Nvfp4Weight, GlobalScaleStaysFiniteAndNormal) {
  EXPECT_EQ(nvfp4_weight_global_scale(0.F), 1.F);
  for (const float largest : {std::numeric_limits<float>::denorm_min(), 1e-38F, 1e-30F, 1.F, 1e30F,
                              std::numeric_limits<float>::max()}) {
    EXPECT_TRUE(std::isnormal(nvfp4_weight_global_scale(largest))) << largest;
    EXPECT_TRUE(std::isnormal(multiplier_of_global_scale(nvfp4_weight_global_scale(largest))));
  }
}

TEST(Nvfp4Weight, TinyGroupStoresZeroCodes) {
  std::array<float, 16> x;
  x.fill(1e-7F);
  std::array<std::uint8_t, 8> codes;
  std::uint8_t scale = 9;
  quantize_nvfp4_weight(x, nvfp4_weight_global_scale(10.F), codes, scale);
  EXPECT_EQ(scale, 0);
  for (const std::uint8_t code : codes) EXPECT_EQ(code, 0);
}

TEST(Mxfp8, ScaleIsTheSmallestThatDoesNotSaturate) {
  EXPECT_EQ(mxfp8_scale(0.F), 127);
  EXPECT_EQ(mxfp8_scale(448.F), 127);
  EXPECT_EQ(mxfp8_scale(std::nextafter(448.F, 1e9F)), 128);
  EXPECT_EQ(mxfp8_scale(224.F), 126);
  EXPECT_EQ(mxfp8_scale(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(mxfp8_scale(std::numeric_limits<float>::max()), 247);
  EXPECT_EQ(mxfp8_scale(std::numeric_limits<float>::infinity()), 247);
  for (std::uint32_t i = 0; i < 20000; ++i) {
    const float x = std::fabs(std::bit_cast<float>(philox4x32(32, {i, 0, 0, 0})[0]));
    if (!std::isfinite(x) || x == 0.F) continue;
    const std::uint8_t scale = mxfp8_scale(x);
    EXPECT_LE(static_cast<double>(x) / decode_e8m0(scale), 448.) << x;
    if (scale > 0) {
      EXPECT_GT(static_cast<double>(x) / decode_e8m0(static_cast<std::uint8_t>(scale - 1)), 448.)
          << x;
    }
  }
}

TEST(Mxfp8, RoundTripErrorIsAtMostHalfAStep) {
  for (std::uint32_t g = 0; g < 1000; ++g) {
    std::array<float, 32> x, y;
    float largest = 0.F;
    for (std::uint32_t i = 0; i < 32; ++i) {
      x[i] = random_normal_like(g * 32 + i);
      largest = std::max(largest, std::fabs(x[i]));
    }
    std::array<std::uint8_t, 32> elements;
    std::uint8_t scale = 0;
    quantize_mxfp8(x, elements, scale);
    dequantize_mxfp8(elements, scale, y);
    for (std::size_t i = 0; i < 32; ++i) {
      const float step = decode_e8m0(scale) * 0x1p-10F;  // half the subnormal step
      EXPECT_LE(std::fabs(x[i] - y[i]), std::max(std::fabs(x[i]) / 16.F, step));
    }
  }
}

}  // namespace
}  // namespace winnow
