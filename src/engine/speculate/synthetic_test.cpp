#include "engine/speculate/synthetic.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/error.h"
#include "engine/testing/toy_speculation.h"

namespace winnow {
namespace {

TEST(SyntheticAcceptance, LengthBecomesTheRatesOfLeastVariance) {
  const auto rates = [](double length, std::int32_t num_drafts) {
    const SyntheticAcceptance acceptance = SyntheticAcceptance::of_length(length, num_drafts);
    return std::vector<double>(acceptance.rates().begin(), acceptance.rates().end());
  };
  const std::vector<double> flash = rates(3.2, 7);
  EXPECT_EQ(flash[0], 1);
  EXPECT_EQ(flash[1], 1);
  EXPECT_NEAR(flash[2], 0.2, 1e-12);
  EXPECT_EQ(flash[3], 0);
  EXPECT_NEAR(rates(2.45, 3)[1], 0.45, 1e-12);
  EXPECT_EQ(rates(1, 2), (std::vector<double>{0, 0}));
  EXPECT_EQ(rates(3, 2), (std::vector<double>{1, 1}));
}

TEST(SyntheticAcceptance, WrongRatesAndLengthsAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double length : {0.99, 8.01, -1.0, nan}) {
    EXPECT_THROW((void)SyntheticAcceptance::of_length(length, 7), Error) << length;
  }
  for (const std::vector<double>& rates :
       {std::vector<double>{}, {1.1}, {-0.1}, {0.5, 0.6}, {nan}, {1, nan}}) {
    EXPECT_THROW((void)SyntheticAcceptance(rates), Error);
  }
  const SyntheticAcceptance acceptance(std::vector<double>{0.8, 0.4, 0, 0});
  EXPECT_EQ(acceptance.conditional_rate(0), 0.8);
  EXPECT_EQ(acceptance.conditional_rate(1), 0.5);
  EXPECT_EQ(acceptance.conditional_rate(2), 0);
  EXPECT_EQ(acceptance.conditional_rate(3), 0);
  EXPECT_EQ(acceptance.conditional_rate(9), 0);
}

struct Steps {
  std::vector<int> by_accepted{};
  Verified last{};
};

Steps run_steps(const SyntheticAcceptance& acceptance, const SamplingParams& params,
                std::span<const TokenId> drafts, std::span<const float> row, int num_steps,
                const TokenFilter* filter = nullptr) {
  std::vector<float> logits;
  for (std::size_t i = 0; i <= drafts.size(); ++i)
    logits.insert(logits.end(), row.begin(), row.end());
  SampleRules rules(params, {}, 0);
  std::vector<TokenId> context = {0};
  SampleState state(rules, 0, context, filter != nullptr ? filter->clone() : nullptr);
  VerifyScratch scratch;
  Steps steps{.by_accepted = std::vector<int>(drafts.size() + 1), .last = {}};
  for (int i = 0; i < num_steps; ++i) {
    rules.seed = static_cast<std::uint64_t>(i);
    verify_synthetic(acceptance,
                     {.logits = logits, .drafts = drafts, .distributions = {}, .rules = &rules},
                     state, context, scratch, steps.last);
    ++steps.by_accepted[static_cast<std::size_t>(steps.last.num_accepted)];
    EXPECT_EQ(steps.last.num_proposed, std::ssize(drafts));
    EXPECT_EQ(std::ssize(steps.last.tokens), steps.last.num_accepted + 1);
  }
  return steps;
}

TEST(SyntheticAcceptance, AcceptsAtTheSetRatesWhateverTheTargetSays) {
  SamplingParams params;
  params.max_tokens = 100;
  const std::vector<TokenId> drafts = {1, 1, 1, 1, 1, 1, 1};
  const std::vector<float> row = {9, -9, -9, -9};  // the target would accept none
  for (const float temperature : {0.0F, 1.0F}) {
    params.temperature = temperature;
    const Steps steps =
        run_steps(SyntheticAcceptance::of_length(3.2, 7), params, drafts, row, 100'000);
    EXPECT_EQ(steps.by_accepted[2] + steps.by_accepted[3], 100'000);
    EXPECT_NEAR(steps.by_accepted[3], 20'000, 6 * 127);  // six standard deviations
    EXPECT_EQ(steps.last.tokens.back().token, 0);
  }
  const Steps all = run_steps(SyntheticAcceptance::of_length(8, 7), params, drafts, row, 100);
  EXPECT_EQ(all.by_accepted[7], 100);
}

TEST(SyntheticAcceptance, InvalidAndForbiddenDraftsAreRefused) {
  SamplingParams params;
  params.max_tokens = 100;
  const SyntheticAcceptance all = SyntheticAcceptance::of_length(4, 3);
  const std::vector<float> row = {1, 1, 1, 1};
  EXPECT_EQ(run_steps(all, params, std::vector<TokenId>{1, -1, 1}, row, 100).by_accepted[1], 100);
  EXPECT_EQ(run_steps(all, params, std::vector<TokenId>{4, 1, 1}, row, 100).by_accepted[0], 100);
  const testing::ToyFilter filter(4, 1, -1);  // after 0 token 2 is forbidden
  EXPECT_EQ(run_steps(all, params, std::vector<TokenId>{0, 2, 1}, row, 100, &filter).by_accepted[1],
            100);
}

}  // namespace
}  // namespace winnow
