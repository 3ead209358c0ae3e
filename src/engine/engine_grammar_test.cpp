// Requests with a filter whose masks are filled while the runner works: what they say depends
// neither on who filled a mask nor on anything else that happens to a request.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

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

struct Setting {
  std::int32_t num_drafts = 0;
  std::int32_t num_blocks = 200;
  bool is_slow = true;  // the runner leaves time for masks
  AcceptMethod method = AcceptMethod::kCoupled;
  std::int32_t num_rounds = 1;  // the same requests again, whose prompts are cached then
};

struct Outcome {
  std::vector<std::shared_ptr<Collected>> outputs;  // of the last round
  EngineStats stats;
};

std::vector<GenerationRequest> constrained_requests(float temperature) {
  std::vector<GenerationRequest> requests;
  for (std::uint32_t i = 0; i < 6; ++i) {
    GenerationRequest request;
    request.prompt = make_prompt(i, 20 + 3 * static_cast<std::int32_t>(i), 0, 60);
    request.sampling.n = i % 2 == 0 ? 1 : 3;
    request.sampling.max_tokens = 30;
    request.sampling.temperature = temperature;
    request.sampling.seed = i;
    request.sampling.presence_penalty = i == 4 ? 0.5F : 0.0F;
    request.sampling.ignore_eos = true;
    if (i != 5) {  // one is free among the others
      request.token_filter =
          std::make_shared<testing::ToyFilter>(64, i, i % 3 == 0 ? TokenId{8} : TokenId{-1});
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

Outcome run(const std::vector<GenerationRequest>& requests, const Setting& setting) {
  FakeRunner runner({.num_blocks = setting.num_blocks, .max_drafts = 7, .percent_right = 80});
  if (setting.is_slow) {
    runner.before_step = [](const Batch&) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    };
  }
  EngineOptions options;
  options.max_model_len = 128;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 128;
  options.stop_token_ids = {63};
  options.speculation.num_drafts = setting.num_drafts;
  options.speculation.method = setting.method;
  EngineCore core(options, runner, nullptr);
  Outcome outcome;
  RequestId id = 0;
  for (std::int32_t round = 0; round < setting.num_rounds; ++round) {
    outcome.outputs.clear();
    for (GenerationRequest request : requests) {
      outcome.outputs.push_back(std::make_shared<Collected>());
      collect(request, outcome.outputs.back());
      validate_request(request, options, runner);
      core.submit(++id, std::move(request), Clock::now());
    }
    for (int i = 0; i < 100000 && core.has_work(); ++i) core.step();
  }
  core.check_integrity();
  outcome.stats = core.stats();
  EXPECT_EQ(outcome.stats.num_free_blocks, outcome.stats.num_blocks);
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b) {
  for (std::size_t i = 0; i < a.outputs.size(); ++i) {
    EXPECT_EQ(b.outputs[i]->check(), "");
    EXPECT_EQ(first_difference(*a.outputs[i], *b.outputs[i]), "") << "request " << i;
  }
}

TEST(EngineGrammar, SameTextWhoeverFillsTheMasks) {
  for (const float temperature : {0.0F, 1.0F}) {
    const std::vector<GenerationRequest> requests = constrained_requests(temperature);
    const Outcome alone = run(requests, {.is_slow = false});
    EXPECT_EQ(alone.stats.num_preemptions, 0);
    const Outcome ahead = run(requests, {});
    expect_same(alone, ahead);
    EXPECT_GT(ahead.stats.num_masks_ahead, 0);
    // Every constrained token needs one, whoever filled it.
    EXPECT_GE(ahead.stats.num_masks_ahead + ahead.stats.num_late_masks, (3 + 2 * 3 - 3) * 30);
  }
}

TEST(EngineGrammar, SameTextWithPreemptionPrefixHitsAndSpeculation) {
  for (const float temperature : {0.0F, 1.0F}) {
    const std::vector<GenerationRequest> requests = constrained_requests(temperature);
    const Outcome plain = run(requests, {});
    for (const bool is_slow : {true, false}) {
      const Outcome preempted = run(requests, {.num_blocks = 30, .is_slow = is_slow});
      EXPECT_GT(preempted.stats.num_preemptions, 0);
      expect_same(plain, preempted);
      const Outcome cached = run(requests, {.is_slow = is_slow, .num_rounds = 2});
      EXPECT_GT(cached.stats.prefix_hits, 0);
      expect_same(plain, cached);
      const Outcome drafted =
          run(requests, {.num_drafts = 5, .num_blocks = 32, .is_slow = is_slow, .num_rounds = 2});
      EXPECT_GT(drafted.stats.num_preemptions, 0);
      EXPECT_GT(drafted.stats.accepted_tokens, 0);
      expect_same(plain, drafted);
    }
  }
}

// Methods that test drafts against chances emit other tokens than plain steps, and the same ones
// however far the worker came.
TEST(EngineGrammar, VerificationByChanceDoesNotDependOnTheWorker) {
  const std::vector<GenerationRequest> requests = constrained_requests(1.0F);
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    const Outcome slow = run(requests, {.num_drafts = 5, .method = method});
    const Outcome fast = run(requests, {.num_drafts = 5, .is_slow = false, .method = method});
    EXPECT_GT(slow.stats.num_masks_ahead, 0);
    expect_same(slow, fast);
  }
}

TEST(EngineGrammar, AFailedStepTakesTheMasksBack) {
  FakeRunner runner({});
  int num_steps = 0;
  runner.before_step = [&](const Batch&) {
    if (++num_steps % 4 == 3) throw std::runtime_error("a step that fails");
  };
  EngineOptions options;
  options.max_model_len = 128;
  options.stop_token_ids = {63};
  options.max_num_batched_tokens = 128;
  EngineCore core(options, runner, nullptr);
  RequestId id = 0;
  for (GenerationRequest request : constrained_requests(1.0F)) {
    const auto out = std::make_shared<Collected>();
    collect(request, out);
    core.submit(++id, std::move(request), Clock::now());
    for (int i = 0; i < 1000 && core.has_work(); ++i) core.step();
    EXPECT_FALSE(core.has_work());
    EXPECT_EQ(out->choices[0].finish_reason, FinishReason::kError);
  }
  core.check_integrity();
}

}  // namespace
}  // namespace winnow
