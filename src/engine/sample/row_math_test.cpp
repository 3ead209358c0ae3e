#include "engine/sample/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/sample/candidates.h"
#include "engine/sample/exact_math.h"

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

TEST(RankOf, CountsHigherLogitsAndEqualOnesOfLowerId) {
  const std::vector<float> logits = {3, 1, 3, 2, 1, 3};
  const std::vector<std::int32_t> ranks = {1, 5, 2, 4, 6, 3};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(rank_of(logits, static_cast<TokenId>(i)), ranks[i]);
  }
}

}  // namespace
}  // namespace winnow
