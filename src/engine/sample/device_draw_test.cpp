#include "engine/sample/device_draw.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/testing/fake_runner.h"

namespace winnow {
namespace {

using ::testing::ElementsAre;

const std::vector<TokenId> kContext = {7, 8, 9};

std::optional<PlannedDraw> plan(const SampleRules& rules, std::int32_t num_output = 2) {
  return plan_draw(rules, 3, kContext, num_output);
}

TEST(PlanDraw, SaysWhatTheRequestSays) {
  SamplingParams params;
  params.temperature = 0.5F;
  params.top_k = 40;
  params.top_p = 0.95F;
  params.min_p = 0.1F;
  params.seed = 11;
  const SampleRules rules(params, {}, 5);
  const auto planned = plan(rules);
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->draw.seed, 11U);
  EXPECT_EQ(planned->draw.choice, 3U);
  EXPECT_EQ(planned->draw.position, 2U);
  EXPECT_EQ(planned->draw.inverse_temperature, 2.0F);
  EXPECT_EQ(planned->draw.top_k, 40);
  EXPECT_EQ(planned->draw.top_p, 0.95F);
  EXPECT_EQ(planned->draw.min_p, 0.1F);
  EXPECT_EQ(planned->draw.is_greedy, 0);
  EXPECT_EQ(planned->banned_ids, nullptr);
}

TEST(PlanDraw, BansSingleTokensAndEndsBeforeTheMinimum) {
  SamplingParams params;
  params.bad_words = {{5}, {2}, {1, 3}};
  params.stop_token_ids = {4};
  params.min_tokens = 3;
  const SampleRules rules(params, {}, 5);
  EXPECT_THAT(*plan(rules, 2)->banned_ids, ElementsAre(2, 4, 5));
  EXPECT_THAT(*plan(rules, 3)->banned_ids, ElementsAre(2, 5));
}

TEST(PlanDraw, LeavesRowsToTheHostWhereMoreThanATokenIsWanted) {
  const auto is_planned = [](auto change) {
    SamplingParams params;
    change(params);
    const SampleRules rules(params, {}, 5);
    return plan(rules).has_value();
  };
  EXPECT_TRUE(is_planned([](SamplingParams&) {}));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.logprobs = 0; }));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.logprob_token_ids = {1}; }));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.repetition_penalty = 1.1F; }));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.frequency_penalty = 0.1F; }));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.logit_bias = {{1, 2.0F}}; }));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.allowed_token_ids = {1}; }));
  EXPECT_TRUE(is_planned([](SamplingParams& p) { p.bad_words = {{8, 1}}; }));
  EXPECT_FALSE(is_planned([](SamplingParams& p) { p.bad_words = {{8, 9, 1}}; }));
}

TEST(TokenMasks, AreSetOnceAndSharedByContent) {
  testing::FakeRunner runner({.num_token_masks = 2});
  TokenMasks masks(runner);
  masks.begin_step();
  const auto first = masks.find({1, 40});
  const auto second = masks.find({2});
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_EQ(masks.find({1, 40}), first);
  EXPECT_FALSE(masks.find({3}));  // both are taken in this step
  EXPECT_EQ(runner.num_masks_set, 2);
  masks.begin_step();
  EXPECT_EQ(masks.find({2}), second);
  EXPECT_EQ(masks.find({3}), first);  // the one that was used longest ago
  EXPECT_EQ(runner.num_masks_set, 3);
}

}  // namespace
}  // namespace winnow
