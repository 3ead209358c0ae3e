// The e4m3 mode's table against spec/model.md 4.3: its SHA-256, its named rows and its counts.
#include "formats/dequant_table.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/fp16.h"
#include "formats/nvfp4_cache.h"

namespace winnow {
namespace {

// FIPS 180-4, for messages of whole bytes.
std::string sha256_hex(std::vector<std::uint8_t> message) {
  std::array<std::uint32_t, 64> k;
  std::array<std::uint32_t, 8> h;
  // The constants are the first 32 fraction bits of cube and square roots of the primes.
  int count = 0;
  for (int n = 2; count < 64; ++n) {
    bool is_prime = true;
    for (int d = 2; d * d <= n; ++d) is_prime = is_prime && n % d != 0;
    if (!is_prime) continue;
    const auto fraction = [](long double root) {
      return static_cast<std::uint32_t>((root - std::floor(root)) * 0x1p32L);
    };
    const auto prime = static_cast<long double>(n);
    k[static_cast<std::size_t>(count)] = fraction(std::cbrt(prime));
    if (count < 8) h[static_cast<std::size_t>(count)] = fraction(std::sqrt(prime));
    ++count;
  }
  const std::uint64_t bit_length = message.size() * 8;
  message.push_back(0x80);
  while (message.size() % 64 != 56) message.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) {
    message.push_back(static_cast<std::uint8_t>(bit_length >> shift));
  }
  for (std::size_t chunk = 0; chunk < message.size(); chunk += 64) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (std::size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | message[chunk + 4 * i + b];
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15];
      const std::uint32_t b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    std::array<std::uint32_t, 8> s = h;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t t1 = s[7] +
                               (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                               ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      const std::uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                               ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {t1 + t2, s[0], s[1], s[2], s[3] + t1, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) h[i] += s[i];
  }
  std::string hex;
  for (const std::uint32_t word : h) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 0xF];
  }
  return hex;
}

TEST(DequantTable, HasTheSpecifiedSha256) {
  EXPECT_EQ(sha256_hex({'a', 'b', 'c'}),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  std::vector<std::uint8_t> bytes;
  for (const auto& row : kDequantTable) bytes.insert(bytes.end(), row.begin(), row.end());
  ASSERT_EQ(bytes.size(), 2048U);
  EXPECT_EQ(sha256_hex(bytes), "0f6bedfe899cb3598f7fcdd4a23e832ace7ca6f5e873691cad744ddd65d47d24");
}

TEST(DequantTable, NamedRows) {
  using Row = std::array<std::uint8_t, 8>;
  EXPECT_EQ(kDequantTable[0x38], (Row{0x00, 0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c}));
  EXPECT_EQ(kDequantTable[0x3b], (Row{0x00, 0x33, 0x3b, 0x40, 0x43, 0x48, 0x4b, 0x50}));
  EXPECT_EQ(kDequantTable[0x7e], (Row{0x00, 0x76, 0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0x7e}));
  EXPECT_EQ(kDequantTable[0x01], (Row{0x00, 0x00, 0x01, 0x02, 0x02, 0x03, 0x04, 0x06}));
}

TEST(DequantTable, CountsOfExactRoundedAndSaturatedPairs) {
  int exact = 0, rounded = 0, saturated = 0, nan_rows = 0;
  for (std::size_t s = 0; s < 256; ++s) {
    if ((s & 0x7F) == 0x7F) {
      ++nan_rows;
      continue;
    }
    for (std::size_t m = 0; m < 8; ++m) {
      const float product = kE4m3Values[s & 0x7F] * kE2m1Values[m];
      const float stored = kE4m3Values[kDequantTable[s][m]];
      if (stored == product) {
        ++exact;
      } else if (product > kE4m3Max) {
        ++saturated;
        EXPECT_EQ(kDequantTable[s][m], 0x7E);
      } else {
        ++rounded;
      }
    }
  }
  EXPECT_EQ(exact, 1482);
  EXPECT_EQ(rounded, 424);
  EXPECT_EQ(saturated, 126);
  EXPECT_EQ(nan_rows * 8, 16);
}

// Both modes over all 256 × 16 (scale, code) pairs, each from its definition.
TEST(DequantModes, EveryScaleAndCode) {
  for (int s = 0; s < 256; ++s) {
    const float scale = decode_e4m3(static_cast<std::uint8_t>(s & 0x7F));
    for (int code = 0; code < 16; ++code) {
      Nvfp4Block block{.codes = {}, .scale = static_cast<std::uint8_t>(s)};
      block.codes.fill(static_cast<std::uint8_t>(code * 0x11));
      std::array<float, 16> exact;
      std::array<std::uint8_t, 16> bytes;
      dequantize_exact(block, exact);
      dequantize_e4m3(block, bytes);
      const float product = kE2m1Values[static_cast<std::size_t>(code)] * scale;
      for (std::size_t i = 0; i < 16; ++i) {
        if ((s & 0x7F) == 0x7F) {
          EXPECT_TRUE(std::isnan(exact[i]));
          EXPECT_EQ(bytes[i] & 0x7F, 0x7F);
          continue;
        }
        EXPECT_EQ(std::bit_cast<std::uint32_t>(exact[i]), std::bit_cast<std::uint32_t>(product));
        EXPECT_EQ(round_to_bf16(exact[i]), exact[i]);
        EXPECT_EQ(decode_fp16(encode_fp16(exact[i])), exact[i]);
        EXPECT_EQ(bytes[i], encode_e4m3(product)) << "scale " << s << " code " << code;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
