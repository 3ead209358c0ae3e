#include "engine/sample/row_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/exact_math.h"
#include "base/random.h"
#include "engine/sample/candidates.h"

namespace winnow {
namespace {

TEST(ExpWeight, IsWithinTwoUlpsOfExp) {
  double worst = 0;
  for (float x = 0.0F; x > -87.0F; x = std::nextafter(x * 1.0001F - 1e-6F, -100.0F)) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_weight(x)) - exact) / exact);
  }
  EXPECT_LT(worst, 2e-7);
  EXPECT_EQ(exp_weight(0.0F), 1.0F);
  EXPECT_EQ(exp_weight(-0.0F), 1.0F);
  EXPECT_EQ(exp_weight(-88.0F), 0.0F);
  EXPECT_EQ(exp_weight(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_EQ(exp_weight(std::numeric_limits<float>::lowest()), 0.0F);
}

TEST(NaturalLog, IsWithinTwoUlpsOfLog) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-120.0, 120.0);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::exp2(exponent(random));
    EXPECT_NEAR(natural_log(x), std::log(x), std::abs(std::log(x)) * 1e-15);
  }
  for (const double x : {1.0 - 0x1p-53, 1.0 + 0x1p-52, 1.0, 0x1p-52, 0.5, 2.0}) {
    EXPECT_NEAR(natural_log(x), std::log(x), std::abs(std::log(x)) * 1e-15) << x;
  }
}

TEST(SelectTopK, EqualsASort) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    const auto size = 1 + static_cast<std::size_t>(random() % 5000);
    std::vector<float> logits(size);
    const auto levels = 1 + random() % 1000;  // few levels: many ties
    for (float& logit : logits) logit = static_cast<float>(random() % levels);
    if (round % 3 == 0) logits[random() % size] = -std::numeric_limits<float>::infinity();
    if (round % 5 == 0) std::ranges::sort(logits);
    const auto k = 1 + static_cast<std::int32_t>(random() % (size + 10));
    std::vector<Candidate> expected(size);
    for (std::size_t i = 0; i < size; ++i) {
      expected[i] = {.logit = logits[i], .token = static_cast<TokenId>(i)};
    }
    std::ranges::sort(expected, is_ahead);
    expected.resize(std::min(size, static_cast<std::size_t>(k)));
    std::vector<Candidate> selected;
    select_top_k(logits, k, selected);
    std::ranges::sort(selected, is_ahead);
    ASSERT_EQ(selected.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_EQ(selected[i].token, expected[i].token);
  }
}

TEST(KeepTopP, EqualsASortedScan) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<Candidate> candidates(1 + random() % 3000);
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const float logit = -static_cast<float>(random() % 64) / 8.0F;
      candidates[i] = {
          .logit = logit, .token = static_cast<TokenId>(i), .weight = exp_weight(logit)};
      total += weight_mass(candidates[i].weight);
    }
    std::ranges::shuffle(candidates, random);
    const double top_p = static_cast<double>(1 + random() % 999) / 1000.0;
    std::vector<Candidate> sorted = candidates;
    std::ranges::sort(sorted, is_ahead);
    std::uint64_t mass = 0;
    std::size_t kept = 0;
    const auto target = static_cast<std::uint64_t>(std::ceil(top_p * static_cast<double>(total)));
    while (mass < target) mass += weight_mass(sorted[kept++].weight);
    keep_top_p(candidates, top_p, total);
    ASSERT_EQ(candidates.size(), kept);
    std::ranges::sort(candidates, is_ahead);
    for (std::size_t i = 0; i < kept; ++i) ASSERT_EQ(candidates[i].token, sorted[i].token);
  }
}

TEST(RowKernels, CountTokensAheadByLogitAndId) {
  const std::vector<float> logits = {3, 1, 3, 2, 1, 3};
  const std::vector<std::int32_t> ahead = {0, 4, 1, 3, 5, 2};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(row_kernels().count_ahead(logits, static_cast<TokenId>(i)), ahead[i]);
  }
}

TEST(RowKernels, GiveTheSameBitsOnEveryInstructionSet) {
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal(0.0F, 20.0F);
  const CpuIsa best = detect_machine().best_isa;
  const RowKernels& reference = row_kernels(CpuIsa::kPortable);
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (isa > best) continue;
    const RowKernels& kernels = row_kernels(isa);
    for (const std::size_t size : {1UL, 15UL, 16UL, 17UL, 255UL, 256UL, 257UL, 5000UL}) {
      std::vector<float> logits(size);
      for (float& logit : logits) logit = normal(random);
      if (size > 20) logits[size / 2] = -std::numeric_limits<float>::infinity();
      if (size > 20) logits[size / 3] = logits[size - 1];
      const RowScan scan = reference.scan(logits);
      EXPECT_EQ(kernels.scan(logits).argmax, scan.argmax);
      EXPECT_EQ(kernels.scan(logits).max, scan.max);
      for (const float inverse : {1.0F, 0.3F, 1e5F}) {
        EXPECT_EQ(kernels.sum_weights(logits, scan.max, inverse),
                  reference.sum_weights(logits, scan.max, inverse));
        std::vector<float> a(size), b(size);
        reference.fill_weights(logits, scan.max, inverse, a);
        kernels.fill_weights(logits, scan.max, inverse, b);
        EXPECT_EQ(a, b);
      }
      const auto token = static_cast<TokenId>(random() % size);
      EXPECT_EQ(kernels.count_ahead(logits, token), reference.count_ahead(logits, token));
      for (std::size_t bad = 0; bad < size; bad += 1 + size / 5) {
        std::vector<float> broken = logits;
        broken[bad] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_TRUE(kernels.scan(broken).is_bad);
        EXPECT_TRUE(reference.scan(broken).is_bad);
      }
    }
  }
}

TEST(RowKernels, FillNumbersIsPhilox) {
  for (const CpuIsa isa : {CpuIsa::kPortable, CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (isa > detect_machine().best_isa) continue;
    DrawTile numbers;
    const std::uint64_t seed = 0xfedcba9876543210;
    row_kernels(isa).fill_numbers(seed, 0xfffffff0, {7, 8, 9}, numbers);
    for (std::uint32_t g = 0; g < kDrawTile / 4; ++g) {
      const Philox4 four = philox4x32(seed, {0xfffffff0 + g, 7, 8, 9});
      for (std::size_t j = 0; j < 4; ++j) EXPECT_EQ(numbers[4 * g + j], four[j]);
    }
  }
}

}  // namespace
}  // namespace winnow
