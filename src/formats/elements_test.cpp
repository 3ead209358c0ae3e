// E2M1, E4M3, E8M0, BF16 and FP16 against the golden file (ml_dtypes) and by exhaustion.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/fp16.h"
#include "formats/golden_file_test.h"

namespace winnow {
namespace {

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

TEST(E2m1, EqualsMlDtypesOnGoldenInputs) {
  const GoldenFile golden;
  const auto all = golden.floats("e2m1.all");
  ASSERT_EQ(all.size(), 16U);
  for (std::size_t code = 0; code < 16; ++code) {
    EXPECT_EQ(bits(decode_e2m1(static_cast<std::uint8_t>(code))), bits(all[code])) << code;
  }
  const auto in = golden.floats("e2m1.in");
  const auto code = golden.bytes("e2m1.code");
  const auto out = golden.floats("e2m1.out");
  ASSERT_EQ(in.size(), code.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_EQ(encode_e2m1(in[i]), code[i]) << in[i];
    EXPECT_EQ(bits(decode_e2m1(code[i])), bits(out[i])) << in[i];
  }
}

TEST(E2m1, LadderIsNearestTiesToEvenForEveryScale) {
  for (int s = 1; s < 0x7F; ++s) {
    const float scale = decode_e4m3(static_cast<std::uint8_t>(s));
    for (int step = 0; step < 8 * 64; ++step) {
      const float unit = static_cast<float>(step) / 64.F;  // exact
      int best = 0;
      for (int code = 1; code < 8; ++code) {
        const float d = std::fabs(unit - kE2m1Values[static_cast<std::size_t>(code)]);
        const float e = std::fabs(unit - kE2m1Values[static_cast<std::size_t>(best)]);
        if (d < e || (d == e && code % 2 == 0)) best = code;
      }
      EXPECT_EQ(e2m1_magnitude(unit * scale, scale), best) << unit << " scale " << scale;
    }
  }
}

TEST(E4m3, EqualsMlDtypesOnGoldenInputsExceptThatItSaturates) {
  const GoldenFile golden;
  const auto all = golden.floats("e4m3.all");
  ASSERT_EQ(all.size(), 256U);
  for (std::size_t code = 0; code < 256; ++code) {
    const float value = decode_e4m3(static_cast<std::uint8_t>(code));
    if (std::isnan(all[code])) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(bits(value), bits(all[code])) << code;
    }
  }
  const auto in = golden.floats("e4m3.in");
  const auto code = golden.bytes("e4m3.code");
  for (std::size_t i = 0; i < in.size(); ++i) {
    // The library turns what rounds beyond 448 into NaN.
    const bool overflows = (code[i] & 0x7F) == 0x7F;
    EXPECT_EQ(encode_e4m3(in[i]), overflows ? code[i] - 1 : code[i]) << in[i];
  }
}

TEST(E4m3, EveryMidpointRoundsToEven) {
  for (std::uint8_t code = 0; code < 0x7E; ++code) {
    const float low = decode_e4m3(code);
    const float high = decode_e4m3(static_cast<std::uint8_t>(code + 1));
    const float middle = (low + high) / 2.F;  // exact
    const auto even = static_cast<std::uint8_t>(code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(encode_e4m3(middle), even) << middle;
    EXPECT_EQ(encode_e4m3(std::nextafter(middle, 0.F)), code) << middle;
    EXPECT_EQ(encode_e4m3(std::nextafter(middle, 500.F)), code + 1) << middle;
    EXPECT_EQ(encode_e4m3(-middle), even | 0x80) << middle;
    EXPECT_EQ(encode_e4m3(low), code);
  }
}

TEST(E4m3, SaturatesAndKeepsNaNAndSign) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(encode_e4m3(infinity), 0x7E);
  EXPECT_EQ(encode_e4m3(-infinity), 0xFE);
  EXPECT_EQ(encode_e4m3(464.F), 0x7E);
  EXPECT_EQ(encode_e4m3(1e30F), 0x7E);
  EXPECT_EQ(encode_e4m3(nan), 0x7F);
  EXPECT_EQ(encode_e4m3(-nan), 0xFF);
  EXPECT_EQ(encode_e4m3(-0.F), 0x80);
  EXPECT_EQ(encode_e4m3(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(encode_e4m3(0x1p-10F), 0);  // tie between 0 and 2^-9: even
  EXPECT_EQ(encode_e4m3(std::nextafter(0x1p-10F, 1.F)), 1);
}

TEST(E8m0, EqualsMlDtypesForEveryCode) {
  const GoldenFile golden;
  const auto code = golden.bytes("e8m0.code");
  const auto out = golden.floats("e8m0.out");
  ASSERT_EQ(code.size(), 255U);
  for (std::size_t i = 0; i < code.size(); ++i) {
    EXPECT_EQ(bits(decode_e8m0(code[i])), bits(out[i])) << int{code[i]};
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(kE8m0NaN)));
}

TEST(Bf16, RoundTripsEveryCodeAndRoundsTiesToEven) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const float value = decode_bf16(static_cast<Bf16>(code));
    const bool is_nan = std::isnan(value);
    EXPECT_EQ(encode_bf16(value), is_nan ? code | 0x40 : code);
    if (is_nan || std::isinf(value) || (code & 0x7FFF) == 0x7F7F) continue;
    const float middle = std::bit_cast<float>((code << 16) | 0x8000);
    EXPECT_EQ(encode_bf16(middle), code + (code & 1));
  }
  EXPECT_EQ(encode_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Fp16, RoundTripsEveryCodeAndEqualsTheCompiler) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const float value = decode_fp16(static_cast<Fp16>(code));
    EXPECT_EQ(encode_fp16(value), std::isnan(value) ? code | 0x200 : code);
  }
#if defined(__FLT16_MAX__)
  for (std::uint32_t i = 0; i < 100000; ++i) {
    const float x = std::bit_cast<float>(philox4x32(16, {i, 0, 0, 0})[0]);
    if (std::isnan(x)) continue;
    EXPECT_EQ(encode_fp16(x), std::bit_cast<Fp16>(static_cast<_Float16>(x))) << x;
  }
#endif
  EXPECT_EQ(encode_fp16(65519.F), 0x7BFF);
  EXPECT_EQ(encode_fp16(65520.F), 0x7C00);
}

}  // namespace
}  // namespace winnow
