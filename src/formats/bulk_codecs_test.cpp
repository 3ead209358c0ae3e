// Every instruction set's row codecs against the scalar ones, to the bit.
#include "formats/bulk_codecs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/machine.h"
#include "base/random.h"

namespace winnow {
namespace {

class BulkCodecsTest : public testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (GetParam() > detect_machine().best_isa) GTEST_SKIP() << "this CPU lacks it";
  }
  const BulkCodecs& codecs() const { return bulk_codecs(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(, BulkCodecsTest,
                         testing::Values(CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512),
                         [](const auto& param) { return std::string(cpu_isa_name(param.param)); });

float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Random bit patterns, patterns near 1 in magnitude, and every edge a format has.
std::vector<float> hard_floats(std::int64_t n, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(n));
  const float edges[] = {0.F,      -0.F,  448.F,  464.F,  465.F,   0x1p-6F, 0x1p-9F,
                         0x1p-10F, 6.F,   5.F,    3.5F,   2.5F,    1.75F,   1.25F,
                         0.75F,    0.25F, 2688.F, 1e-40F, -1e-45F, 3e38F,   0x1.9p-7F};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Philox4 r = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    switch (r[0] % 8) {
      case 0:
        x[i] = from_bits(r[1]);
        break;
      case 1:
        x[i] = edges[r[1] % std::size(edges)] * ((r[2] & 1) != 0 ? 1.F : -1.F);
        break;
      case 2:
        x[i] = std::nextafter(edges[r[1] % std::size(edges)], (r[2] & 1) != 0 ? 1e9F : -1e9F);
        break;
      default:
        x[i] = std::ldexp(static_cast<float>(static_cast<std::int32_t>(r[1])) * 0x1p-31F,
                          static_cast<int>(r[2] % 12) - 6);
    }
  }
  return x;
}

std::vector<std::uint8_t> random_bytes(std::int64_t n, std::uint64_t seed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] =
        static_cast<std::uint8_t>(philox4x32(seed, {static_cast<std::uint32_t>(i), 1, 0, 0})[0]);
  }
  return bytes;
}

template <typename T>
void expect_same_bytes(const std::vector<T>& expected, const std::vector<T>& actual,
                       const char* what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    // The sign of a product of two NaNs depends on operand order, which C++ leaves open.
    if constexpr (std::is_same_v<T, float>) {
      if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    }
    ASSERT_EQ(std::memcmp(&expected[i], &actual[i], sizeof(T)), 0)
        << what << " at " << i << ": expected " << +expected[i] << ", got " << +actual[i];
  }
}

TEST_P(BulkCodecsTest, ElementCodecsEqualScalarOnEveryLengthAndInput) {
  for (const std::int64_t n : {0, 1, 7, 8, 15, 16, 17, 31, 33, 100, 100'000}) {
    const std::vector<float> x = hard_floats(n, 7);
    const auto size = static_cast<std::size_t>(n);
    std::vector<std::uint16_t> e16(size + 8, 0xAAAA), a16(size + 8, 0xAAAA);
    std::vector<std::uint8_t> e8(size + 8, 0xAA), a8(size + 8, 0xAA);
    std::vector<float> ef(size + 8, 1.F), af(size + 8, 1.F);
    kScalarCodecs.encode_bf16(x.data(), e16.data(), n);
    codecs().encode_bf16(x.data(), a16.data(), n);
    expect_same_bytes(e16, a16, "encode_bf16");
    kScalarCodecs.decode_bf16(e16.data(), ef.data(), n);
    codecs().decode_bf16(e16.data(), af.data(), n);
    expect_same_bytes(ef, af, "decode_bf16");
    kScalarCodecs.encode_e4m3(x.data(), e8.data(), n);
    codecs().encode_e4m3(x.data(), a8.data(), n);
    expect_same_bytes(e8, a8, "encode_e4m3");
    kScalarCodecs.decode_e4m3(e8.data(), ef.data(), n);
    codecs().decode_e4m3(e8.data(), af.data(), n);
    expect_same_bytes(ef, af, "decode_e4m3");
  }
}

TEST_P(BulkCodecsTest, DecodersEqualScalarOnEveryCode) {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  std::vector<float> expected(256), actual(256);
  kScalarCodecs.decode_e4m3(codes.data(), expected.data(), 256);
  codecs().decode_e4m3(codes.data(), actual.data(), 256);
  expect_same_bytes(expected, actual, "decode_e4m3");

  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  expected.resize(65536);
  actual.resize(65536);
  kScalarCodecs.decode_bf16(halves.data(), expected.data(), 65536);
  codecs().decode_bf16(halves.data(), actual.data(), 65536);
  expect_same_bytes(expected, actual, "decode_bf16");
}

// All 256 scales × 16 codes (as all pairs of neighbouring nibbles), in every NVFP4 reader.
TEST_P(BulkCodecsTest, Nvfp4ReadersEqualScalarOnEveryScaleAndCode) {
  std::vector<std::uint8_t> scales, codes;
  for (int scale = 0; scale < 256; ++scale) {
    for (int block = 0; block < 32; ++block) {  // 32 × 8 bytes: every code byte once
      scales.push_back(static_cast<std::uint8_t>(scale));
      for (int byte = 0; byte < 8; ++byte)
        codes.push_back(static_cast<std::uint8_t>(block * 8 + byte));
    }
  }
  const auto n = static_cast<std::int64_t>(codes.size() * 2);
  const auto size = codes.size() * 2;
  std::vector<float> expected(size), actual(size);
  kScalarCodecs.dequantize_nvfp4_exact(codes.data(), scales.data(), expected.data(), n);
  codecs().dequantize_nvfp4_exact(codes.data(), scales.data(), actual.data(), n);
  expect_same_bytes(expected, actual, "exact");
  kScalarCodecs.dequantize_nvfp4_e4m3_to_float(codes.data(), scales.data(), expected.data(), n);
  codecs().dequantize_nvfp4_e4m3_to_float(codes.data(), scales.data(), actual.data(), n);
  expect_same_bytes(expected, actual, "e4m3 as floats");
  for (const float multiplier : {1.F, 0.3F, 1e-30F, 1e30F}) {
    kScalarCodecs.dequantize_nvfp4_weight(codes.data(), scales.data(), multiplier, expected.data(),
                                          n);
    codecs().dequantize_nvfp4_weight(codes.data(), scales.data(), multiplier, actual.data(), n);
    expect_same_bytes(expected, actual, "weight");
  }
  std::vector<std::uint8_t> expected_bytes(size), actual_bytes(size);
  kScalarCodecs.dequantize_nvfp4_e4m3(codes.data(), scales.data(), expected_bytes.data(), n);
  codecs().dequantize_nvfp4_e4m3(codes.data(), scales.data(), actual_bytes.data(), n);
  expect_same_bytes(expected_bytes, actual_bytes, "e4m3");
}

TEST_P(BulkCodecsTest, Nvfp4QuantisersEqualScalar) {
  for (const std::int64_t n : {16, 32, 128, 16 * 15, 16 * 17, 160'000}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const std::vector<float> x = hard_floats(n, seed + 100);
      const auto size = static_cast<std::size_t>(n);
      std::vector<std::uint8_t> ec(size / 2), ac(size / 2), es(size / 16), as(size / 16);
      kScalarCodecs.quantize_nvfp4_cache(x.data(), ec.data(), es.data(), n);
      codecs().quantize_nvfp4_cache(x.data(), ac.data(), as.data(), n);
      expect_same_bytes(es, as, "cache scales");
      expect_same_bytes(ec, ac, "cache codes");
      for (const float global : {1.F, 700.F, 1e-20F}) {
        kScalarCodecs.quantize_nvfp4_weight(x.data(), global, ec.data(), es.data(), n);
        codecs().quantize_nvfp4_weight(x.data(), global, ac.data(), as.data(), n);
        expect_same_bytes(es, as, "weight scales");
        expect_same_bytes(ec, ac, "weight codes");
      }
    }
  }
}

TEST_P(BulkCodecsTest, Mxfp8EqualsScalar) {
  for (const std::int64_t n : {32, 64, 96, 320'000}) {
    const std::vector<float> x = hard_floats(n, 900);
    const auto size = static_cast<std::size_t>(n);
    std::vector<std::uint8_t> ee(size), ae(size), es(size / 32), as(size / 32);
    kScalarCodecs.quantize_mxfp8(x.data(), ee.data(), es.data(), n);
    codecs().quantize_mxfp8(x.data(), ae.data(), as.data(), n);
    expect_same_bytes(es, as, "scales");
    expect_same_bytes(ee, ae, "elements");
    const std::vector<std::uint8_t> elements = random_bytes(n, 1);
    const std::vector<std::uint8_t> scales = random_bytes(n / 32, 2);
    std::vector<float> ef(size), af(size);
    kScalarCodecs.dequantize_mxfp8(elements.data(), scales.data(), ef.data(), n);
    codecs().dequantize_mxfp8(elements.data(), scales.data(), af.data(), n);
    expect_same_bytes(ef, af, "values");
  }
}

TEST_P(BulkCodecsTest, AGroupWithANaNIsStoredAsNaNAndInfinitySaturates) {
  std::vector<float> x(32, 1.F);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  x[20] = -std::numeric_limits<float>::infinity();
  std::vector<std::uint8_t> codes(16), scales(2);
  codecs().quantize_nvfp4_cache(x.data(), codes.data(), scales.data(), 32);
  EXPECT_EQ(scales[0], 0x7F);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(codes[i], 0);
  EXPECT_EQ(scales[1], 0x7E);
  EXPECT_EQ(codes[10], 0x0F);
  std::vector<float> out(32);
  codecs().dequantize_nvfp4_exact(codes.data(), scales.data(), out.data(), 32);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(out[i]));
  EXPECT_EQ(out[20], -2688.F);
}

}  // namespace
}  // namespace winnow
