#include "engine/speculate/verify.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/testing/toy_speculation.h"

namespace winnow {
namespace {

using testing::ToyFilter;

constexpr AcceptMethod kMethods[] = {AcceptMethod::kStandard, AcceptMethod::kBlock,
                                     AcceptMethod::kCoupled};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) {
    logits.push_back(p > 0 ? static_cast<float>(std::log(p)) : -100.0F);
  }
  return logits;
}

/// One verification of given rows and drafts.
struct Block {
  SamplingParams params{};
  std::vector<std::vector<float>> rows;
  std::vector<TokenId> drafts;
  std::vector<std::vector<double>> q;  // empty: one-hot
  std::vector<TokenId> prompt = {0, 0};
  std::unique_ptr<TokenFilter> filter{};
  std::int32_t num_output = 0;

  explicit Block(std::int32_t max_tokens = 100) { params.max_tokens = max_tokens; }

  Verified run(AcceptMethod method, std::uint64_t seed = 1) {
    SampleRules rules(params, {}, seed);
    SampleState state(rules, 0, prompt, filter ? filter->clone() : nullptr);
    std::vector<TokenId> context = prompt;
    return run(method, rules, state, context);
  }

  Verified run(AcceptMethod method, const SampleRules& rules, SampleState& state,
               std::vector<TokenId>& context) {
    std::vector<float> logits;
    for (const auto& row : rows) logits.insert(logits.end(), row.begin(), row.end());
    std::vector<DraftWeights> weights(q.size());
    std::vector<DraftDistribution> distributions;
    for (std::size_t i = 0; i < q.size(); ++i) {
      for (const double probability : q[i]) {
        weights[i].weights.push_back(static_cast<float>(probability));
        weights[i].total += probability;
      }
      distributions.push_back(weights[i].view());
    }
    VerifyScratch scratch;
    Verified verified;
    verify(method,
           {.logits = logits,
            .drafts = drafts,
            .distributions = distributions,
            .rules = &rules,
            .num_output = num_output},
           state, context, scratch, verified);
    return verified;
  }
};

std::vector<TokenId> ids(const Verified& verified) {
  std::vector<TokenId> result;
  for (const SampledToken& token : verified.tokens) result.push_back(token.token);
  return result;
}

/// Rows after which nothing but `tokens` can come, one each.
std::vector<std::vector<float>> certain_rows(const std::vector<TokenId>& tokens, std::size_t size) {
  std::vector<std::vector<float>> rows(tokens.size(), std::vector<float>(size, -200.0F));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    rows[i][static_cast<std::size_t>(tokens[i])] = 0.0F;
  }
  return rows;
}

struct Shares {
  double accepted = 0;
  std::vector<double> first, after_rejection;
};

/// Over many seeds, each with a draft drawn from q.
Shares measure(Block& block, AcceptMethod method, std::size_t size) {
  constexpr int kRuns = 40'000;
  Shares shares{.first = std::vector<double>(size), .after_rejection = std::vector<double>(size)};
  const SampleRules greedy_free(block.params, {}, 1);
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    DraftWeights q;
    for (const double probability : block.q[0]) {
      q.weights.push_back(static_cast<float>(probability));
    }
    q.total = 1;
    block.drafts = {propose_token(q.view(), {.seed = seed, .position = 1}, method)};
    const Verified verified = block.run(method, seed);
    const auto first = static_cast<std::size_t>(verified.tokens[0].token);
    shares.first[first] += 1.0 / kRuns;
    if (verified.num_accepted > 0) {
      shares.accepted += 1.0 / kRuns;
    } else {
      shares.after_rejection[first] += 1.0 / kRuns;
    }
  }
  for (double& share : shares.after_rejection) share /= 1.0 - shares.accepted;
  return shares;
}

// 40,000 runs: a share's standard deviation is at most 0.0025, after a rejection 0.0035.
void expect_near(const std::vector<double>& seen, const std::vector<double>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(seen[i], expected[i], 0.018) << i;
}

TEST(Verify, GivesTheShareAndTheResidualOfTheToyExample) {
  const std::vector<double> p = {0.4, 0.3, 0.2, 0.1};
  Block block;
  block.rows = {logits_of(p), logits_of(p)};
  block.q = {{0.1, 0.1, 0.4, 0.4}};
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    const Shares shares = measure(block, method, 4);
    EXPECT_NEAR(shares.accepted, 0.5, 0.0125);
    expect_near(shares.after_rejection, {0.6, 0.4, 0.0, 0.0});
    expect_near(shares.first, p);
  }
  const Shares coupled = measure(block, AcceptMethod::kCoupled, 4);
  EXPECT_GT(coupled.accepted, 0.4);
  EXPECT_LT(coupled.accepted, 0.5);
  expect_near(coupled.first, p);
}

TEST(Verify, AForbiddenDraftIsARejectionWithTheWholeQ) {
  // ToyFilter with seed 1 after token 0 forbids tokens 2 and 5.
  Block block;
  block.rows = {logits_of({0.25, 0.25, 0.5}), logits_of({1, 1, 1})};
  block.q = {{0.5, 0.0, 0.5}};
  block.filter = std::make_unique<ToyFilter>(3, 1, -1);
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    expect_near(measure(block, method, 3).first, {0.5, 0.5, 0.0});
  }
  block.drafts = {2};
  EXPECT_EQ(block.run(AcceptMethod::kStandard).num_proposed, 0);
  EXPECT_TRUE(block.run(AcceptMethod::kStandard).is_rejected);
}

TEST(Verify, BlocksAcceptMoreThanSingleTests) {
  const testing::ToyModel target{.seed = 3};
  const testing::ToyDrafter drafter{.model = {.seed = 4}, .agreement = 0.3F};
  SamplingParams params;
  params.max_tokens = 4000;
  std::int64_t accepted[2] = {0, 0};
  std::int64_t steps[2] = {0, 0};
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    for (std::int64_t seed = 0; seed < 10; ++seed) {
      params.seed = seed;
      const SampleRules rules(params, {}, 0);
      const std::vector<TokenId> prompt = {1};
      testing::ToyRun run(target, drafter, rules, prompt, nullptr);
      const auto m = static_cast<std::size_t>(method);
      while (!run.is_done()) {
        run.step(method, 6);
        accepted[m] += run.verified().num_accepted;
        ++steps[m];
      }
    }
  }
  EXPECT_GT(static_cast<double>(accepted[1]) / static_cast<double>(steps[1]),
            1.03 * static_cast<double>(accepted[0]) / static_cast<double>(steps[0]));
}

TEST(Verify, CertainDraftsAreAllAcceptedAndOneTokenFollows) {
  for (const AcceptMethod method : kMethods) {
    for (const float temperature : {0.0F, 1.0F}) {
      Block block;
      block.params.temperature = temperature;
      block.rows = certain_rows({3, 1, 4}, 6);
      block.drafts = {3, 1};
      const Verified verified = block.run(method);
      EXPECT_EQ(ids(verified), (std::vector<TokenId>{3, 1, 4}));
      EXPECT_EQ(verified.num_accepted, 2);
      EXPECT_EQ(verified.num_proposed, 2);
      EXPECT_FALSE(verified.is_rejected);
    }
  }
}

TEST(Verify, AnAcceptedEndTokenIsTheLast) {
  for (const AcceptMethod method : kMethods) {
    Block block;
    block.params.stop_token_ids = {1};
    block.rows = certain_rows({3, 1, 4, 2}, 6);
    block.drafts = {3, 1, 4};
    EXPECT_EQ(ids(block.run(method)), (std::vector<TokenId>{3, 1}));
    block.params.min_tokens = 3;  // counts tokens, not steps: 1 is held back where it was drafted
    const Verified held = block.run(method);
    EXPECT_EQ(held.num_accepted, 1);
    EXPECT_NE(held.tokens.back().token, 1);
    EXPECT_EQ(held.tokens.size(), 2U);
  }
}

TEST(Verify, MaxTokensCutsTheBlock) {
  for (const AcceptMethod method : kMethods) {
    for (std::int32_t left = 1; left <= 4; ++left) {
      Block block(10);
      block.num_output = 10 - left;
      block.rows = certain_rows({3, 1, 4}, 6);
      block.drafts = {3, 1};
      const Verified verified = block.run(method);
      EXPECT_EQ(std::ssize(verified.tokens), std::min(left, 3));
      EXPECT_EQ(verified.num_accepted, std::min(left, 2));
      EXPECT_EQ(verified.num_proposed, std::min(left, 2));
    }
  }
}

TEST(Verify, ABrokenRowEndsTheRunOnlyWhereItIsReached) {
  for (const AcceptMethod method : kMethods) {
    Block block;
    block.rows = certain_rows({3, 1, 4}, 6);
    block.drafts = {3, 1};
    block.rows[1][5] = kNan;
    Verified verified = block.run(method);
    EXPECT_EQ(verified.status, SampleStatus::kCorruptLogits);
    EXPECT_EQ(ids(verified), (std::vector<TokenId>{3}));
    EXPECT_EQ(verified.num_accepted, 1);
    block.drafts = {2, 1};  // refused before
    verified = block.run(method);
    EXPECT_EQ(verified.status, SampleStatus::kOk);
    EXPECT_EQ(ids(verified), (std::vector<TokenId>{3}));
    EXPECT_EQ(verified.num_accepted, 0);
    block.rows[0][0] = kNan;
    verified = block.run(method);
    EXPECT_EQ(verified.status, SampleStatus::kCorruptLogits);
    EXPECT_TRUE(verified.tokens.empty());
  }
}

TEST(Verify, NothingAllowedEndsTheRunWhereItIsReached) {
  for (const AcceptMethod method : kMethods) {
    Block block;
    block.rows = certain_rows({3, 1, 4}, 6);
    block.drafts = {3, 1};
    block.params.allowed_token_ids = {3, 1};
    block.params.bad_words = {{3, 1}, {3, 3}};
    const Verified verified = block.run(method);
    EXPECT_EQ(verified.status, SampleStatus::kNothingAllowed);
    EXPECT_EQ(ids(verified), (std::vector<TokenId>{3}));
  }
}

TEST(Verify, IdsOutsideTheVocabularyAreRefused) {
  for (const AcceptMethod method : kMethods) {
    for (const TokenId bad : {-1, 6, 1 << 30}) {
      Block block;
      block.rows = certain_rows({3, 1, 4}, 6);
      block.drafts = {3, bad};
      EXPECT_EQ(ids(block.run(method)), (std::vector<TokenId>{3, 1}));
      block.q = {{0, 0, 0, 1, 0, 0}, {0, 1, 0, 0, 0, 0}};
      EXPECT_EQ(block.run(method).num_accepted, 1);
    }
  }
}

TEST(Verify, AnUnusableDistributionEndsTheDrafts) {
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    for (const double broken : {0.0, static_cast<double>(kNan)}) {
      Block block;
      block.rows = certain_rows({3, 1, 4}, 6);
      block.drafts = {3, 1};
      block.q = {{0, 0, 0, 1, 0, 0}, {broken, 0, 0, 0, 0, 0}};
      const Verified verified = block.run(method);
      EXPECT_EQ(verified.num_proposed, 1);
      EXPECT_EQ(ids(verified), (std::vector<TokenId>{3, 1}));
    }
  }
}

TEST(Verify, StateAndContextAreBackWhereTheyWere) {
  for (const AcceptMethod method : kMethods) {
    Block block;
    block.params.frequency_penalty = 1.0F;
    block.rows = {{0, 9, 0, 0}, {0, 0, 0, 9}, {9, 0, 0, 0}};
    block.drafts = {1, 3};
    block.filter = std::make_unique<ToyFilter>(4, 2, -1);
    const SampleRules rules(block.params, {}, 5);
    SampleState state(rules, 0, block.prompt, block.filter->clone());
    state.accept(0);
    std::vector<TokenId> context = {0, 0, 0};
    const std::vector<TokenId> before = context;
    SampleScratch scratch;
    const std::vector<float> row = {1.0F, 0.5F, 0.2F, 0.9F};
    ProcessedRow processed = process_row(row, rules, state, context, 1, scratch);
    const std::vector<float> expected(processed.logits.begin(), processed.logits.end());
    block.run(method, rules, state, context);
    EXPECT_EQ(context, before);
    EXPECT_EQ(static_cast<ToyFilter&>(*state.filter).num_accepted(), 1U);
    processed = process_row(row, rules, state, context, 1, scratch);
    EXPECT_TRUE(std::ranges::equal(processed.logits, expected));
  }
}

TEST(Verify, LogprobsAreTheTargetRowsOwn) {
  for (const AcceptMethod method : kMethods) {
    for (const bool processed : {false, true}) {
      Block block;
      block.params.logprobs = 2;
      block.params.processed_logprobs = processed;
      block.params.temperature = 0.5F;
      block.params.logit_bias = {{2, -100.0F}};
      block.rows = {logits_of({0.5, 0.3, 0.2}), logits_of({0.1, 0.6, 0.3}), logits_of({1, 1, 1})};
      block.drafts = {0, 1};
      block.q = {{0.6, 0.2, 0.2}, {0.2, 0.6, 0.2}};
      const double expected[2][2] = {{0.5, 0.6}, {0.25 / 0.34, 0.36 / 0.37}};  // without 2, squared
      int num_seen = 0;
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const Verified verified = block.run(method, seed);
        for (std::size_t i = 0; i < verified.tokens.size(); ++i) {
          ASSERT_TRUE(verified.tokens[i].logprobs.has_value());
          EXPECT_EQ(verified.tokens[i].logprobs->top.size(), 2U);
          EXPECT_EQ(verified.tokens[i].logprobs->chosen.token, verified.tokens[i].token);
          if (i >= 2 || verified.tokens[i].token != block.drafts[i]) continue;
          EXPECT_NEAR(std::exp(static_cast<double>(verified.tokens[i].logprobs->chosen.logprob)),
                      expected[processed ? 1 : 0][i], 1e-5);
          ++num_seen;
        }
      }
      EXPECT_GT(num_seen, 50);
    }
  }
}

TEST(Verify, WhatFollowsAStopStringIsDropped) {
  Block block;
  block.rows = certain_rows({3, 1, 4, 2}, 6);
  block.drafts = {3, 1, 0};
  Verified verified = block.run(AcceptMethod::kStandard);
  EXPECT_EQ(ids(verified), (std::vector<TokenId>{3, 1, 4}));
  EXPECT_TRUE(verified.is_rejected);
  verified.keep_first(3);
  EXPECT_TRUE(verified.is_rejected);
  verified.keep_first(2);  // the refusal itself stands
  EXPECT_TRUE(verified.is_rejected);
  EXPECT_EQ(verified.num_accepted, 2);
  verified.keep_first(1);
  EXPECT_EQ(ids(verified), (std::vector<TokenId>{3}));
  EXPECT_EQ(verified.num_accepted, 1);
  EXPECT_FALSE(verified.is_rejected);
}

TEST(Draft, BrokenDrafterLogitsGiveNoDistribution) {
  SamplingParams params;
  const SampleRules rules(params, {}, 1);
  DraftWeights weights;
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(fill_draft_weights(std::vector<float>{0, kNan}, {}, rules, weights));
  EXPECT_FALSE(fill_draft_weights(std::vector<float>{0, infinity}, {}, rules, weights));
  EXPECT_FALSE(fill_draft_weights(std::vector<float>{-infinity}, {}, rules, weights));
  EXPECT_TRUE(fill_draft_weights(std::vector<float>{0, -infinity}, {}, rules, weights));
  EXPECT_EQ(weights.view().probability(0, 0), 1.0);
  EXPECT_EQ(weights.view().probability(1, 0), 0.0);
  EXPECT_EQ(weights.view().probability(2, 0), 0.0);
}

TEST(Draft, CoupledProposalsFromTheTargetsOwnDistributionAlwaysAgree) {
  const testing::ToyModel target{.seed = 8};
  const testing::ToyDrafter drafter{.model = target, .agreement = 1.0F};
  SamplingParams params;
  params.max_tokens = 400;
  const SampleRules rules(params, {}, 3);
  const std::vector<TokenId> prompt = {1, 2};
  testing::ToyRun run(target, drafter, rules, prompt, nullptr);
  while (!run.is_done()) {
    run.step(AcceptMethod::kCoupled, 7);
    EXPECT_FALSE(run.verified().is_rejected);
  }
}

}  // namespace
}  // namespace winnow
