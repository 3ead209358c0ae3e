#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/testing/core_fixture.h"

namespace winnow {
namespace {

using testing::ChoiceOutput;
using testing::collect;
using testing::Collected;
using testing::FakeRunner;
using testing::make_prompt;

constexpr TokenId kEos = 63;

EngineOptions small_options() {
  EngineOptions options;
  options.max_model_len = 256;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.stop_token_ids = {kEos};
  return options;
}

class EngineCoreTest : public testing::EngineCoreFixture {
 protected:
  std::shared_ptr<Collected> submit_prompt(std::int32_t length, std::int32_t max_tokens,
                                           std::uint64_t seed = 1) {
    GenerationRequest request;
    request.prompt = make_prompt(seed, length, 0, 60);
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sampling.logit_bias = {{62, -100.0F}};  // what some tests let fail
    return submit(std::move(request));
  }
};

TEST_F(EngineCoreTest, GeneratesUpToMaxTokens) {
  start(small_options());
  const auto out = submit_prompt(20, 5);
  run_all();
  EXPECT_EQ(out->check(), "");
  EXPECT_EQ(out->choices[0].tokens.size(), 5U);
  EXPECT_EQ(out->choices[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(out->stats.num_prompt_tokens, 20);
  EXPECT_EQ(runner_->num_tokens, 24);  // the last token's values are not needed
}

TEST_F(EngineCoreTest, EndsAtAnEndTokenAndNamesTheRequestsOwn) {
  start(small_options());
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 20;
  request.sampling.allowed_token_ids = {kEos};
  const auto eos = submit(request);
  request.sampling.stop_token_ids = {kEos};
  request.sampling.ignore_eos = true;
  const auto own = submit(request);
  request.sampling.stop_token_ids = {};
  const auto neither = submit(request);
  run_all();
  EXPECT_EQ(eos->choices[0].tokens, std::vector<TokenId>{kEos});
  EXPECT_EQ(eos->choices[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(eos->choices[0].stop_token, std::nullopt);
  EXPECT_EQ(own->choices[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(own->choices[0].stop_token, kEos);
  EXPECT_EQ(neither->choices[0].finish_reason, FinishReason::kLength);
}

TEST_F(EngineCoreTest, SharesThePromptBetweenChoices) {
  start(small_options());
  GenerationRequest request;
  request.prompt = make_prompt(3, 20, 0, 60);
  request.sampling.n = 4;
  request.sampling.max_tokens = 6;
  request.sampling.ignore_eos = true;
  const auto out = submit(request);
  run_all();
  EXPECT_EQ(out->check(), "");
  EXPECT_EQ(runner_->num_tokens, 20 + 4 * 5);  // one prefill
  EXPECT_NE(out->choices[0].tokens, out->choices[1].tokens);
  EXPECT_EQ(core_->stats().recomputed_tokens, 0);
}

TEST_F(EngineCoreTest, ChoicesStoppedBeforeTheyBeganAreNotDrawn) {
  start(small_options());
  GenerationRequest request;
  request.prompt = make_prompt(3, 100, 0, 60);  // two steps
  request.sampling.n = 3;
  request.sampling.max_tokens = 6;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 4;
  const auto all = submit(request);
  run_all();
  const auto out = submit(request);
  core_->reset_prefix_cache(true);
  core_->step();
  core_->stop_choice(last_id_, 0);
  core_->stop_choice(last_id_, 0);
  core_->stop_choice(last_id_, 7);
  run_all();
  EXPECT_EQ(out->check(), "");
  EXPECT_TRUE(out->choices[0].tokens.empty());
  EXPECT_EQ(out->choices[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(out->choices[1].tokens, all->choices[1].tokens);
  EXPECT_EQ(out->choices[2].tokens, all->choices[2].tokens);
  // All of them: the request ends and gives its blocks back.
  const auto none = submit(request);
  core_->reset_prefix_cache(true);
  core_->step();
  for (std::int32_t choice = 0; choice < 3; ++choice) core_->stop_choice(last_id_, choice);
  EXPECT_FALSE(core_->has_work());
  run_all();
  EXPECT_EQ(none->check(), "");
}

TEST_F(EngineCoreTest, OneRequestMayHaveMoreChoicesThanSeatsOrBlocks) {
  EngineOptions options = small_options();
  options.max_num_seqs = 2;
  start(options, {.num_blocks = 6});
  GenerationRequest request;
  request.prompt = make_prompt(3, 20, 0, 60);
  request.sampling.n = 20;
  request.sampling.max_tokens = 25;
  request.sampling.ignore_eos = true;
  const auto out = submit(request);
  run_all();
  EXPECT_EQ(out->check(), "");
  for (const ChoiceOutput& choice : out->choices) EXPECT_EQ(choice.tokens.size(), 25U);
}

TEST_F(EngineCoreTest, RefusesWhatCanNeverRun) {
  start(small_options(), {.num_blocks = 16});  // 128 slots, max_model_len 256
  const auto param_of = [&](std::vector<TokenId> prompt, std::int32_t max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    try {
      validate_request(request, options_, *runner_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      if (error.param() == "max_tokens") {
        EXPECT_NE(std::string(error.what()).find("maximum context length"), std::string::npos);
      }
      return error.param();
    }
    return std::string();
  };
  EXPECT_EQ(param_of({}, 5), "prompt");  // cases.md I1
  EXPECT_EQ(param_of({64}, 5), "prompt");
  EXPECT_EQ(param_of({-1}, 5), "prompt");
  EXPECT_EQ(param_of(make_prompt(1, 200, 0, 60), 57), "max_tokens");
  EXPECT_EQ(param_of(make_prompt(1, 100, 0, 60), 30),
            "max_tokens");  // fits the model, not the pool
  EXPECT_EQ(param_of(make_prompt(1, 100, 0, 60), 29), "");
  EXPECT_EQ(param_of({1}, 2147483647), "max_tokens");
  submit_prompt(100, 29);
  run_all();
}

TEST_F(EngineCoreTest, NothingToGenerateStillComputesThePrompt) {  // cases.md I1
  start(small_options());
  GenerationRequest request;
  request.prompt = make_prompt(3, 100, 0, 60);
  request.sampling.max_tokens = 0;
  request.sampling.n = 2;
  const auto plain = submit(request);
  request.sampling.prompt_logprobs = 1;
  const auto scored = submit(request);
  run_all();
  for (const auto& out : {plain, scored}) {
    EXPECT_EQ(out->check(), "");
    EXPECT_EQ(out->choices[0].finish_reason, FinishReason::kLength);
    EXPECT_TRUE(out->choices[1].tokens.empty());
  }
  EXPECT_TRUE(plain->prompt_logprobs.empty());
  ASSERT_EQ(scored->prompt_logprobs.size(), 100U);
  EXPECT_FALSE(scored->prompt_logprobs[0].has_value());
  for (std::size_t i = 1; i < 100; ++i) {
    ASSERT_TRUE(scored->prompt_logprobs[i].has_value());
    EXPECT_EQ(scored->prompt_logprobs[i]->chosen.token, request.prompt[i]);
    EXPECT_EQ(scored->prompt_logprobs[i]->top.size(), 1U);
  }
}

TEST_F(EngineCoreTest, PromptLogprobsDoNotReadTheCacheAndAreThoseOfGeneration) {
  start(small_options());
  GenerationRequest request;
  request.prompt = make_prompt(3, 30, 0, 60);
  request.sampling.max_tokens = 30;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 2;
  const auto generated = submit(request);
  run_all();
  const std::vector<TokenId>& output = generated->choices[0].tokens;
  request.prompt.insert(request.prompt.end(), output.begin(), output.end());
  request.sampling.max_tokens = 1;
  request.sampling.prompt_logprobs = 2;
  const EngineStats before = core_->stats();
  const auto scored = submit(request);
  run_all();
  EXPECT_EQ(scored->stats.num_cached_tokens, 0);
  EXPECT_EQ(core_->stats().prefix_queries, before.prefix_queries);
  for (std::size_t i = 0; i < output.size(); ++i) {
    const PositionLogprobs& as_prompt = *scored->prompt_logprobs[30 + i];
    const PositionLogprobs& as_output = *generated->choices[0].logprobs[i];
    EXPECT_EQ(as_prompt.chosen.logprob, as_output.chosen.logprob);
    EXPECT_EQ(as_prompt.top[1].token, as_output.top[1].token);
  }
}

TEST_F(EngineCoreTest, DeadlineInTheQueueIsAnErrorWhileRunningAnAbort) {
  EngineOptions options = small_options();
  options.max_num_seqs = 1;
  start(options);
  GenerationRequest request;
  request.prompt = make_prompt(3, 10, 0, 60);
  request.sampling.max_tokens = 200;
  request.sampling.ignore_eos = true;
  request.deadline = Clock::now() + std::chrono::hours(1);
  const auto unhurried = submit(request);
  request.deadline = Clock::now() + std::chrono::milliseconds(30);
  const auto queued = submit(request);
  core_->step();
  core_->step();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  core_->step();
  EXPECT_TRUE(queued->is_done());
  EXPECT_EQ(queued->choices[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(queued->choices[0].error_code, ErrorCode::kUnavailable);
  EXPECT_EQ(queued->stats.first_scheduled, Clock::time_point{});
  EXPECT_FALSE(unhurried->is_done());
  core_->abort_all();
  request.deadline = Clock::now() + std::chrono::milliseconds(30);
  const auto running = submit(request);
  core_->step();
  core_->step();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  core_->step();
  EXPECT_EQ(running->check(), "");
  EXPECT_EQ(running->choices[0].finish_reason, FinishReason::kAbort);
  EXPECT_GE(running->choices[0].tokens.size(), 2U);
  EXPECT_LT(running->choices[0].tokens.size(), 200U);
  run_all();
}

TEST_F(EngineCoreTest, AMoreUrgentRequestTakesTheSeatOfARunningOne) {
  EngineOptions options = small_options();
  options.max_num_seqs = 1;
  options.policy = SchedulingPolicy::kPriority;
  start(options);
  GenerationRequest request;
  request.prompt = make_prompt(3, 10, 0, 60);
  request.sampling.max_tokens = 20;
  request.sampling.ignore_eos = true;
  request.priority = 5;
  const auto patient = submit(request);
  for (int i = 0; i < 5; ++i) core_->step();
  request.priority = 1;
  const auto urgent = submit(request);
  request.priority = 5;
  const auto later = submit(request);
  while (!urgent->is_done()) {
    EXPECT_FALSE(patient->is_done());
    core_->step();
  }
  while (!patient->is_done()) {
    EXPECT_FALSE(later->is_done());
    core_->step();
  }
  run_all();
  EXPECT_EQ(patient->check(), "");
  EXPECT_EQ(patient->stats.num_preemptions, 1);
  EXPECT_EQ(core_->stats().num_preemptions, 1);
}

TEST_F(EngineCoreTest, EveryDecodeTakesPartInEveryStepOfALongPrefill) {
  EngineOptions options = small_options();
  options.max_num_batched_tokens = 24;
  start(options, {.num_blocks = 200});
  std::vector<std::shared_ptr<Collected>> decoding;
  for (std::uint64_t i = 0; i < 5; ++i) decoding.push_back(submit_prompt(4, 60, i));
  core_->step();
  const auto prefill = submit_prompt(200, 2);
  for (std::size_t step = 0; prefill->choices[0].tokens.empty(); ++step) {
    for (const auto& out : decoding) EXPECT_EQ(out->choices[0].tokens.size(), step + 1);
    core_->step();
    ASSERT_LT(step, 30U);
  }
  run_all();
}

// cases.md I5: hits + computed = prompt tokens of first admissions; recompute has its own counter.
TEST_F(EngineCoreTest, CountersTellTheTruthUnderPreemption) {
  EngineOptions options = small_options();
  start(options, {.num_blocks = 20});
  std::vector<std::shared_ptr<Collected>> outputs;
  for (std::uint64_t i = 0; i < 30; ++i) outputs.push_back(submit_prompt(30, 50, i % 10));
  run_all();
  const EngineStats stats = core_->stats();
  std::int64_t cached = 0, recomputed = 0, preemptions = 0, generated = 0;
  for (const auto& out : outputs) {
    EXPECT_EQ(out->check(), "");
    cached += out->stats.num_cached_tokens;
    recomputed += out->stats.num_recomputed_tokens;
    preemptions += out->stats.num_preemptions;
    generated += out->stats.num_output_tokens;
  }
  EXPECT_GT(stats.num_preemptions, 0);
  EXPECT_EQ(stats.prompt_tokens, 30 * 30);
  EXPECT_EQ(stats.prefix_queries, 30 * 30);
  EXPECT_EQ(stats.prefix_hits, cached);
  EXPECT_EQ(stats.cached_tokens, cached);
  EXPECT_EQ(stats.recomputed_tokens, recomputed);
  EXPECT_EQ(stats.num_preemptions, preemptions);
  EXPECT_EQ(stats.generation_tokens, generated);
  // What the runner was given is exactly: uncached prompt tokens, fed-back output, repetition.
  EXPECT_EQ(runner_->num_tokens,
            stats.prompt_tokens - cached + generated - 30 + stats.recomputed_tokens);
}

TEST_F(EngineCoreTest, WhatACorruptRequestCachedIsNotFoundAgain) {
  start(small_options());
  runner_->nan_token = 62;
  GenerationRequest request;
  request.prompt = make_prompt(3, 40, 0, 60);
  request.prompt.push_back(62);
  request.sampling.logit_bias = {{62, -100.0F}};
  const auto corrupt = submit(request);
  run_all();
  EXPECT_EQ(corrupt->choices[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(corrupt->choices[0].error_code, ErrorCode::kInternal);
  EXPECT_EQ(core_->stats().num_corrupted_requests, 1);
  request.prompt.back() = 1;
  const auto next = submit(request);
  run_all();
  EXPECT_EQ(next->stats.num_cached_tokens, 0);
  EXPECT_EQ(next->choices[0].finish_reason, FinishReason::kLength);
}

TEST_F(EngineCoreTest, AFailedStepEndsItsSequencesAndTheLoopGoesOn) {
  EngineOptions options = small_options();
  options.max_num_seqs = 2;
  start(options);
  runner_->failing_token = 62;
  const auto beside = submit_prompt(10, 20);
  GenerationRequest request;
  request.prompt = {1, 2, 62};
  request.sampling.n = 3;
  const auto failing = submit(request);
  const auto waiting = submit_prompt(12, 20);
  run_all();
  for (const auto& out : {beside, failing}) {
    EXPECT_EQ(out->check(), "");
    EXPECT_EQ(out->choices[0].finish_reason, FinishReason::kError);
    EXPECT_EQ(out->choices[0].error, "the device has lost its way");
  }
  EXPECT_EQ(waiting->choices[0].tokens.size(), 20U);
  EXPECT_EQ(core_->stats().num_failed_steps, 1);
  EXPECT_FALSE(core_->stats().is_broken);
}

TEST_F(EngineCoreTest, MinTokensHoldsEndTokensBack) {
  start(small_options());
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 20;
  request.sampling.min_tokens = 7;
  request.sampling.stop_token_ids = {10};
  request.sampling.logit_bias = {{10, 100.0F}, {kEos, 100.0F}};
  const auto out = submit(request);
  run_all();
  EXPECT_EQ(out->choices[0].tokens.size(), 8U);
  EXPECT_EQ(out->choices[0].finish_reason, FinishReason::kStop);
}

TEST_F(EngineCoreTest, ContradictingConstraintsEndTheRequestOnly) {
  start(small_options());
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.sampling.allowed_token_ids = {5};
  request.sampling.bad_words = {{5, 5}};
  const auto contradiction = submit(request);
  const auto other = submit_prompt(10, 4);
  run_all();
  EXPECT_EQ(contradiction->check(), "");
  EXPECT_EQ(contradiction->choices[0].tokens, std::vector<TokenId>{5});
  EXPECT_EQ(contradiction->choices[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(contradiction->choices[0].error_code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(other->choices[0].finish_reason, FinishReason::kLength);
}

/// Allows the token after the last accepted one, so that the output counts up.
class CountingFilter final : public TokenFilter {
 public:
  bool fill_mask(std::span<std::uint32_t> mask) override {
    std::ranges::fill(mask, 0U);
    mask[static_cast<std::size_t>(next_ / 32)] |= 1U << next_ % 32;
    return true;
  }
  void accept(TokenId token) override { next_ = token + 1; }
  void rollback(std::int32_t num_tokens) override { next_ -= num_tokens; }
  std::unique_ptr<TokenFilter> clone() const override {
    return std::make_unique<CountingFilter>(*this);
  }

 private:
  TokenId next_ = 3;
};

TEST_F(EngineCoreTest, EachChoiceWalksItsOwnFilterAlsoWhenPreempted) {
  start(small_options(), {.num_blocks = 10});
  GenerationRequest request;
  request.prompt = make_prompt(3, 20, 0, 60);
  request.sampling.n = 5;
  request.sampling.max_tokens = 40;
  request.token_filter = std::make_shared<CountingFilter>();
  const auto out = submit(request);
  run_all();
  EXPECT_GT(core_->stats().num_preemptions, 0);
  for (const ChoiceOutput& choice : out->choices) {
    ASSERT_EQ(choice.tokens.size(), 40U);
    for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(choice.tokens[i], static_cast<TokenId>(i) + 3);
  }
}

TEST_F(EngineCoreTest, WithoutASeedTheRequestsNumberCounts) {
  EngineOptions options = small_options();
  options.seed = 100;
  start(options);
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.sampling.ignore_eos = true;
  const auto first = submit(request);
  const auto second = submit(request);
  request.sampling.seed = 102;  // the engine's seed and the second request's number
  const auto named = submit(request);
  run_all();
  EXPECT_NE(first->choices[0].tokens, second->choices[0].tokens);
  EXPECT_EQ(named->choices[0].tokens, second->choices[0].tokens);
}

TEST_F(EngineCoreTest, AForcedResetHidesWhatRunningRequestsComputed) {
  start(small_options());
  const auto running = submit_prompt(40, 20);
  core_->step();
  core_->step();
  EXPECT_FALSE(core_->reset_prefix_cache(false));
  EXPECT_TRUE(core_->reset_prefix_cache(true));
  run_all();
  const auto next = submit_prompt(60, 4);  // begins with the same 40 tokens
  run_all();
  EXPECT_EQ(running->choices[0].tokens.size(), 20U);
  EXPECT_EQ(next->stats.num_cached_tokens, 0);
  EXPECT_TRUE(core_->reset_prefix_cache(false));
}

TEST_F(EngineCoreTest, ObservesEveryStep) {
  class Observer final : public StepObserver {
   public:
    void on_step(std::int32_t num_tokens, std::int32_t num_sequences, double seconds) override {
      ++steps;
      tokens += num_tokens;
      sequences += num_sequences;
      EXPECT_GE(seconds, 0.0);
    }
    std::int64_t steps = 0, tokens = 0, sequences = 0;
  } observer;
  FakeRunner runner({});
  EngineCore core(small_options(), runner, &observer);
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.sampling.max_tokens = 4;
  request.sampling.ignore_eos = true;
  collect(request, std::make_shared<Collected>());
  core.submit(1, request, Clock::now());
  while (core.has_work()) core.step();
  EXPECT_EQ(observer.steps, 4);
  EXPECT_EQ(observer.tokens, 6);
  EXPECT_EQ(observer.sequences, 4);
}

}  // namespace
}  // namespace winnow
