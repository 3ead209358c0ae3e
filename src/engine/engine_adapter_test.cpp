// Requests with adapters beside requests without: every one says what it says alone, whatever runs
// beside it, and no cached block crosses from one to the other (cases.md G1).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/testing/core_fixture.h"

namespace winnow {
namespace {

using testing::collect;
using testing::Collected;
using testing::FakeRunner;
using testing::FakeRunnerOptions;
using testing::first_difference;
using testing::make_prompt;
using testing::ToyAdapter;
using Adapter = std::shared_ptr<const ModelAdapter>;
using Outputs = std::vector<std::shared_ptr<Collected>>;

EngineOptions small_options() {
  EngineOptions options;
  options.max_model_len = 256;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 64;
  options.stop_token_ids = {63};
  options.max_adapters = 2;
  return options;
}

Adapter toy(std::uint64_t fingerprint) { return std::make_shared<ToyAdapter>(fingerprint); }

GenerationRequest make_request(const Adapter& adapter, std::int32_t length, std::int32_t max_tokens,
                               std::int64_t seed = 1) {
  GenerationRequest request;
  request.prompt = make_prompt(7, length, 0, 60);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = seed;
  request.sampling.logprobs = 2;
  request.adapter = adapter;
  if (adapter != nullptr) request.adapter_name = fmt::format("a{}", adapter->fingerprint());
  return request;
}

class EngineAdapterTest : public testing::EngineCoreFixture {
 protected:
  std::shared_ptr<Collected> run_alone(const GenerationRequest& request) {
    start(small_options());
    const auto out = submit(request);
    run_all();
    return out;
  }
};

std::vector<GenerationRequest> mixed_requests() {
  std::vector<GenerationRequest> out;
  const std::vector<Adapter> adapters = {nullptr, toy(5), toy(6), nullptr, toy(7)};
  for (std::int64_t round = 0; round < 3; ++round) {
    for (const Adapter& adapter : adapters) {
      GenerationRequest request = make_request(adapter, 40, 12, round);
      if (round == 1) request.sampling.n = 3;
      out.push_back(std::move(request));
    }
  }
  return out;
}

TEST_F(EngineAdapterTest, BaseAdapterBaseLeavesTheBaseAsItWas) {
  const auto before = run_alone(make_request(nullptr, 40, 20));
  const auto adapted = submit(make_request(toy(5), 40, 20));
  run_all();
  const auto after = submit(make_request(nullptr, 40, 20));
  run_all();
  EXPECT_EQ(first_difference(*before, *after), "");
  EXPECT_NE(first_difference(*before, *adapted), "");
  EXPECT_EQ(adapted->stats.num_cached_tokens, 0);
  EXPECT_GT(after->stats.num_cached_tokens, 0);
}

TEST_F(EngineAdapterTest, EachSaysInAMixedBatchWhatItSaysAlone) {
  const std::vector<GenerationRequest> requests = mixed_requests();
  Outputs alone;
  for (const GenerationRequest& request : requests) alone.push_back(run_alone(request));

  EngineOptions chunked = small_options();
  chunked.max_num_batched_tokens = 11;
  EngineOptions drafting = small_options();
  drafting.speculation.num_drafts = 5;
  drafting.speculation.method = AcceptMethod::kCoupled;
  EngineOptions uncached = small_options();
  uncached.enable_prefix_caching = false;
  const struct {
    const char* name;
    EngineOptions options;
    FakeRunnerOptions runner;
  } settings[] = {{"together", small_options(), {}},
                  {"in chunks", chunked, {}},
                  {"without the prefix cache", uncached, {}},
                  {"with preemption", small_options(), {.num_blocks = 10}},
                  {"with drafts", drafting, {.max_drafts = 5}},
                  {"with drafts and preemption", drafting, {.num_blocks = 12, .max_drafts = 5}},
                  {"drawn by the runner", drafting, {.max_drafts = 5, .num_token_masks = 4}}};
  for (const auto& setting : settings) {
    SCOPED_TRACE(setting.name);
    start(setting.options, setting.runner);
    for (int repetition = 0; repetition < 2; ++repetition) {  // the second finds its prefixes
      Outputs outputs;
      for (const GenerationRequest& request : requests) outputs.push_back(submit(request));
      run_all();
      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(first_difference(*alone[i], *outputs[i]), "") << i;
      }
    }
    EXPECT_EQ(runner_->max_batch_adapters, 2);
    const EngineStats stats = core_->stats();
    EXPECT_EQ(stats.num_preemptions > 0, setting.runner.num_blocks < 20);
    EXPECT_EQ(stats.accepted_tokens > 0, setting.runner.max_drafts > 0);
    EXPECT_EQ(stats.prefix_hits > 0, setting.options.enable_prefix_caching);
  }
}

TEST_F(EngineAdapterTest, EqualWeightsFindTheirBlocksAndOtherWeightsDoNot) {
  start(small_options());
  submit(make_request(toy(5), 40, 4));
  run_all();
  const auto reloaded = submit(make_request(toy(5), 40, 4));  // another object, the same contents
  const auto replaced = submit(make_request(toy(6), 40, 4));
  run_all();
  EXPECT_EQ(reloaded->stats.num_cached_tokens, 32);
  EXPECT_EQ(replaced->stats.num_cached_tokens, 0);
}

TEST_F(EngineAdapterTest, ARequestKeepsItsAdapterWhenNobodyElseDoes) {
  Adapter adapter = toy(5);
  const std::weak_ptr<const ModelAdapter> alive = adapter;
  const auto alone = run_alone(make_request(toy(5), 20, 30));
  start(small_options());
  const auto out = submit(make_request(adapter, 20, 30));
  core_->step();
  adapter.reset();  // unloaded
  core_->step();
  EXPECT_FALSE(alive.expired());
  run_all();
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(first_difference(*alone, *out), "");
}

TEST_F(EngineAdapterTest, AnAdapterWithoutRoomWaitsAndOthersPass) {
  EngineOptions options = small_options();
  options.max_adapters = 1;
  start(options, {.num_blocks = 256});
  const Adapter first = toy(5), second = toy(6);
  const auto running = submit(make_request(first, 10, 20));
  core_->step();
  const auto blocked = submit(make_request(second, 10, 3));
  const auto base = submit(make_request(nullptr, 10, 3));
  const auto same = submit(make_request(first, 10, 3));
  core_->step();
  const EngineStats stats = core_->stats();
  EXPECT_EQ(stats.num_running, 3);
  EXPECT_EQ(stats.num_waiting, 1);
  EXPECT_EQ(stats.adapters.at("a5").num_running, 2);
  EXPECT_EQ(stats.adapters.at("a6").num_waiting, 1);
  EXPECT_EQ(stats.adapters.at("a6").num_running, 0);
  while (!running->is_done()) {
    EXPECT_TRUE(blocked->choices[0].tokens.empty());
    core_->step();
  }
  EXPECT_TRUE(base->is_done());
  EXPECT_TRUE(same->is_done());
  core_->step();
  EXPECT_FALSE(blocked->choices[0].tokens.empty());
  run_all();
  EXPECT_EQ(runner_->max_batch_adapters, 1);
}

TEST_F(EngineAdapterTest, AStreamOfOneAdapterDoesNotStarveAnother) {
  EngineOptions options = small_options();
  options.max_adapters = 1;
  start(options, {.num_blocks = 256});
  const Adapter busy = toy(5), rare = toy(6);
  submit(make_request(busy, 10, 40));
  core_->step();
  const auto waiting = submit(make_request(rare, 10, 3));
  std::int64_t num_steps = 0;
  for (; !waiting->is_done(); ++num_steps) {
    if (num_steps % 10 == 0) submit(make_request(busy, 10, 40));  // some always runs
    core_->step();
    ASSERT_LT(num_steps, AdapterTurns::kTurnSteps + 60);
  }
  EXPECT_GT(num_steps, AdapterTurns::kTurnSteps);
  // Once its turn is over the other one gets the next.
  run_all();
  EXPECT_EQ(runner_->max_batch_adapters, 1);
}

TEST_F(EngineAdapterTest, WithinATurnRequestsOfOneAdapterRunTogether) {
  EngineOptions options = small_options();
  options.max_adapters = 1;
  start(options, {.num_blocks = 256});
  const Adapter adapters[] = {toy(5), toy(6)};
  for (std::size_t i = 0; i < 16; ++i) submit(make_request(adapters[i % 2], 4, 10));
  run_all();
  EXPECT_LT(runner_->num_steps, 2 * 10 + 8);  // not one after the other: 160
}

TEST_F(EngineAdapterTest, EndsOfWaitingRequestsLeaveNothingBehind) {
  EngineOptions options = small_options();
  options.max_adapters = 1;
  start(options);
  const auto running = submit(make_request(toy(5), 10, 30));
  core_->step();
  const auto cancelled = submit(make_request(toy(6), 10, 30));
  const RequestId cancelled_id = last_id_;
  GenerationRequest hurried = make_request(toy(7), 10, 30);
  hurried.deadline = Clock::now();
  const auto late = submit(std::move(hurried));
  core_->step();
  core_->abort(cancelled_id);
  EXPECT_EQ(cancelled->choices[0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(late->choices[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(core_->stats().num_waiting, 0);
  EXPECT_EQ(core_->stats().adapters.size(), 1U);
  run_all();
  EXPECT_EQ(running->check(), "");
}

TEST_F(EngineAdapterTest, UrgentRequestsAreNotHeldUpByLessUrgentAdapters) {
  EngineOptions options = small_options();
  options.max_adapters = 1;
  options.policy = SchedulingPolicy::kPriority;
  start(options, {.num_blocks = 256});
  const Adapter urgent = toy(5);
  const auto urgent_request = [&] {
    GenerationRequest request = make_request(urgent, 10, 40);
    request.priority = 1;
    return request;
  };
  submit(urgent_request());
  core_->step();
  GenerationRequest patient = make_request(toy(6), 10, 3);
  patient.priority = 2;
  const auto waiting = submit(std::move(patient));
  for (std::int64_t step = 0; step < 3 * AdapterTurns::kTurnSteps; ++step) {
    if (step % 20 == 0) submit(urgent_request());
    core_->step();
  }
  EXPECT_FALSE(waiting->is_done());
  run_all();
  EXPECT_EQ(waiting->check(), "");
}

}  // namespace
}  // namespace winnow
