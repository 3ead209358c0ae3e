// Speculation in the step loop where it meets an end, an error, a grammar or a limit.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/engine_core.h"
#include "engine/testing/collector.h"
#include "engine/testing/fake_runner.h"
#include "engine/testing/toy_speculation.h"

namespace winnow {
namespace {

using testing::collect;
using testing::Collected;
using testing::FakeRunner;
using testing::make_prompt;

constexpr TokenId kEos = 63;

struct Setting {
  std::int32_t num_drafts = 0;
  std::int32_t percent_right = 100;
  TokenId nan_token = -1;
  AcceptMethod method = AcceptMethod::kCoupled;
  std::vector<double> synthetic_rates{};
};

EngineOptions options_of(const Setting& setting) {
  EngineOptions options;
  options.max_model_len = 256;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.stop_token_ids = {kEos};
  options.speculation.num_drafts = setting.num_drafts;
  options.speculation.method = setting.method;
  options.speculation.synthetic_rates = setting.synthetic_rates;
  return options;
}

struct Outcome {
  std::shared_ptr<Collected> out = std::make_shared<Collected>();
  EngineStats stats;
  std::int32_t last_position = 0;  // of the tokens that the runner saw
};

Outcome run(GenerationRequest request, const Setting& setting) {
  Outcome outcome;
  FakeRunner runner({.max_drafts = 7, .percent_right = setting.percent_right});
  runner.nan_token = setting.nan_token;
  runner.before_step = [&](const Batch& batch) {
    for (const BatchSequence& sequence : batch.sequences) {
      outcome.last_position =
          std::max(outcome.last_position, sequence.first_position + sequence.num_tokens - 1);
    }
  };
  const EngineOptions options = options_of(setting);
  validate_options(options, runner);
  EngineCore core(options, runner, nullptr);
  collect(request, outcome.out);
  validate_request(request, options, runner);
  core.submit(1, std::move(request), Clock::now());
  for (int i = 0; i < 10000 && core.has_work(); ++i) core.step();
  core.check_integrity();
  EXPECT_EQ(outcome.out->check(), "");
  EXPECT_EQ(runner.num_foreign_slots, 0);
  EXPECT_EQ(runner.num_blind_slots, 0);
  outcome.stats = core.stats();
  EXPECT_EQ(outcome.stats.num_free_blocks, outcome.stats.num_blocks);
  return outcome;
}

GenerationRequest request_of(std::int32_t max_tokens, std::uint64_t seed = 1) {
  GenerationRequest request;
  request.prompt = make_prompt(seed, 20, 0, 60);
  request.sampling.max_tokens = max_tokens;
  request.sampling.temperature = 0.0F;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 7;
  return request;
}

TEST(EngineSpeculationLimits, AStepOfRightDraftsGivesOneTokenMore) {
  const Outcome outcome = run(request_of(1 + 5 * 8), {.num_drafts = 7});
  EXPECT_EQ(outcome.stats.num_steps, 1 + 5);  // the prompt's token is drawn without drafts
  EXPECT_EQ(outcome.stats.num_drafts, 5);
  EXPECT_EQ(outcome.stats.draft_tokens, 35);
  EXPECT_EQ(outcome.stats.accepted_tokens, 35);
  EXPECT_EQ(outcome.stats.generation_tokens, 41);
}

// What could not become output is not drafted: no slot is used that a plain run would not use.
TEST(EngineSpeculationLimits, DraftsStayWithinMaxTokens) {
  for (std::int32_t max_tokens = 1; max_tokens < 30; ++max_tokens) {
    const Outcome plain = run(request_of(max_tokens), {});
    const Outcome drafted = run(request_of(max_tokens), {.num_drafts = 7});
    EXPECT_EQ(first_difference(*plain.out, *drafted.out), "") << max_tokens;
    EXPECT_EQ(drafted.last_position, plain.last_position) << max_tokens;
    EXPECT_LE(drafted.last_position, 20 + max_tokens - 2 + (max_tokens == 1 ? 1 : 0));
  }
}

TEST(EngineSpeculationLimits, AnAcceptedEndTokenIsTheLast) {
  bool ended_inside = false;
  for (std::uint64_t seed = 1; seed < 40; ++seed) {
    GenerationRequest request = request_of(60, seed);
    request.sampling.temperature = 1.0F;
    request.sampling.ignore_eos = false;
    request.sampling.stop_token_ids = {11, 12};
    const Outcome plain = run(request, {});
    const Outcome drafted = run(request, {.num_drafts = 7});
    EXPECT_EQ(first_difference(*plain.out, *drafted.out), "") << seed;
    ended_inside |= drafted.out->choices[0].finish_reason == FinishReason::kStop;
  }
  EXPECT_TRUE(ended_inside);
}

TEST(EngineSpeculationErrors, TokensBeforeABrokenRowAreDelivered) {
  int num_errors = 0;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    GenerationRequest request = request_of(60, seed);
    request.sampling.temperature = 1.0F;
    const Outcome plain = run(request, {.nan_token = 9});
    const Outcome drafted = run(request, {.num_drafts = 5, .percent_right = 80, .nan_token = 9});
    EXPECT_EQ(first_difference(*plain.out, *drafted.out), "") << seed;
    EXPECT_EQ(plain.out->choices[0].error, drafted.out->choices[0].error) << seed;
    EXPECT_EQ(plain.stats.num_corrupted_requests, drafted.stats.num_corrupted_requests);
    num_errors += plain.out->choices[0].finish_reason == FinishReason::kError ? 1 : 0;
  }
  EXPECT_GT(num_errors, 3);
}

TEST(EngineSpeculationErrors, ContradictingConstraintsEndTheRunWhereTheyWould) {
  GenerationRequest request = request_of(20);
  request.sampling.allowed_token_ids = {5};
  request.sampling.bad_words = {{5, 5, 5, 5}};
  const Outcome plain = run(request, {});
  EXPECT_EQ(plain.out->choices[0].finish_reason, FinishReason::kError);
  for (const std::int32_t percent_right : {0, 100}) {
    const Outcome drafted = run(request, {.num_drafts = 7, .percent_right = percent_right});
    EXPECT_EQ(first_difference(*plain.out, *drafted.out), "");
    EXPECT_EQ(plain.out->choices[0].error, drafted.out->choices[0].error);
  }
}

// The filter asserts that it is moved along and put back as its contract says.
TEST(EngineSpeculationGrammar, SeesTheDraftsAsOutput) {
  for (const float temperature : {0.0F, 1.0F}) {
    for (std::uint32_t seed = 0; seed < 12; ++seed) {
      GenerationRequest request = request_of(40, seed);
      request.sampling.temperature = temperature;
      request.sampling.n = 2;
      request.token_filter =
          std::make_shared<testing::ToyFilter>(64, seed, seed % 2 == 0 ? TokenId{-1} : TokenId{8});
      const Outcome plain = run(request, {});
      const Outcome drafted = run(request, {.num_drafts = 4, .percent_right = 80});
      EXPECT_EQ(first_difference(*plain.out, *drafted.out), "") << seed;
      EXPECT_GT(drafted.stats.draft_tokens, 0);
      const Outcome standard =
          run(request, {.num_drafts = 4, .percent_right = 80, .method = AcceptMethod::kStandard});
      EXPECT_EQ(standard.out->choices[0].error, "");
    }
  }
}

// Spec 5: 3.2 tokens a step means two drafts always, a third in one step of five, and no more.
TEST(EngineSpeculationSynthetic, AcceptsAtTheSetRates) {
  Setting setting{.num_drafts = 7, .percent_right = 0};
  setting.synthetic_rates = {1, 1, 0.2, 0, 0, 0, 0};
  const Outcome outcome = run(request_of(200), setting);
  const RequestStats& stats = outcome.out->stats;
  ASSERT_EQ(static_cast<std::int64_t>(stats.drafted_steps.size()), outcome.stats.num_drafts);
  std::int64_t num_accepted = 0;
  for (const DraftedStep& step : stats.drafted_steps) {
    num_accepted += step.num_accepted;
    if (step.num_drafts == 7) {
      EXPECT_TRUE(step.num_accepted == 2 || step.num_accepted == 3);
    }
  }
  EXPECT_EQ(num_accepted, outcome.stats.accepted_tokens);
  const auto steps = static_cast<double>(outcome.stats.num_drafts);
  EXPECT_NEAR(1.0 + static_cast<double>(num_accepted) / steps, 3.2, 0.2);
  EXPECT_GE(outcome.stats.accepted_by_position[1], outcome.stats.num_drafts - 1);
  EXPECT_EQ(outcome.stats.accepted_by_position[3], 0);
}

TEST(EngineSpeculationOptions, NeedADrafterThatReachesSoFar) {
  const auto refusal = [](std::int32_t num_drafts, std::int32_t max_drafts) -> std::string {
    const FakeRunner runner({.max_drafts = max_drafts});
    try {
      validate_options(options_of({.num_drafts = num_drafts}), runner);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
  };
  EXPECT_EQ(refusal(0, 0), "");
  EXPECT_EQ(refusal(7, 7), "");
  EXPECT_NE(refusal(3, 0).find("none is loaded"), std::string::npos);
  EXPECT_NE(refusal(8, 7).find("at most 7"), std::string::npos);
  EXPECT_NE(refusal(-1, 7).find("at least 0"), std::string::npos);
}

}  // namespace
}  // namespace winnow
