#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/testing/collector.h"
#include "engine/testing/fake_runner.h"

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

class EngineCoreTest : public ::testing::Test {
 protected:
  void start(const EngineOptions& options, const testing::FakeRunnerOptions& runner = {}) {
    core_.reset();
    runner_ = std::make_unique<FakeRunner>(runner);
    core_ = std::make_unique<EngineCore>(options, *runner_, nullptr);
    options_ = options;
  }

  std::shared_ptr<Collected> submit(GenerationRequest request) {
    auto collected = std::make_shared<Collected>();
    collect(request, collected);
    validate_request(request, options_, *runner_);
    core_->submit(++last_id_, std::move(request), Clock::now());
    return collected;
  }

  std::shared_ptr<Collected> submit_prompt(std::int32_t length, std::int32_t max_tokens,
                                           std::uint64_t seed = 1) {
    GenerationRequest request;
    request.prompt = make_prompt(seed, length, 0, 60);
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    return submit(std::move(request));
  }

  void run_all() {
    for (int i = 0; i < 100000 && core_->has_work(); ++i) core_->step();
    EXPECT_FALSE(core_->has_work());
    core_->check_integrity();
    EXPECT_EQ(core_->stats().num_free_blocks, runner_->num_blocks());
    EXPECT_EQ(runner_->num_foreign_slots, 0);
  }

  EngineOptions options_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<EngineCore> core_;
  RequestId last_id_ = 0;
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

}  // namespace
}  // namespace winnow
