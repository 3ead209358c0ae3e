#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/testing/collector.h"
#include "engine/testing/fake_runner.h"

namespace winnow {
namespace {

using testing::collect;
using testing::Collected;
using testing::FakeRunner;
using testing::make_prompt;

EngineOptions small_options() {
  EngineOptions options;
  options.max_model_len = 512;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 64;
  return options;
}

GenerationRequest make_request(std::int32_t prompt_length, std::int32_t max_tokens,
                               std::uint64_t seed = 1) {
  GenerationRequest request;
  request.prompt = make_prompt(seed, prompt_length, 0, 60);
  request.sampling.max_tokens = max_tokens;
  return request;
}

/// Holds every step back until opened, so that a test can fill the queue behind it.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return is_open_; });
  }
  void wait_until_reached() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false, is_reached_ = false;
};

TEST(Engine, ServesRequestsFromSeveralThreads) {
  FakeRunner runner({});
  Engine engine(small_options(), runner, nullptr);
  std::vector<std::shared_ptr<Collected>> outputs(40);
  std::vector<std::thread> clients;
  for (std::size_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (std::size_t i = client; i < outputs.size(); i += 4) {
        outputs[i] = std::make_shared<Collected>();
        GenerationRequest request = make_request(10 + static_cast<std::int32_t>(i), 8, i);
        collect(request, outputs[i]);
        EXPECT_EQ(engine.submit(std::move(request)).refusal, SubmitRefusal::kNone);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  engine.drain(60.0);
  for (const auto& output : outputs) {
    EXPECT_EQ(output->check(), "");
    EXPECT_EQ(output->choices[0].tokens.size(), 8U);
  }
  EXPECT_EQ(engine.stats().num_free_blocks, runner.num_blocks());
  EXPECT_EQ(engine.stats().generation_tokens, 320);
}

TEST(Engine, RefusesWhenTheQueueIsFullOrDraining) {
  FakeRunner runner({});
  Gate gate;
  runner.before_step = [&](const Batch&) { gate.pass(); };
  EngineOptions options = small_options();
  options.max_num_queued_requests = 3;
  Engine engine(options, runner, nullptr);
  std::vector<std::shared_ptr<Collected>> outputs;
  const auto submit = [&] {
    outputs.push_back(std::make_shared<Collected>());
    GenerationRequest request = make_request(5, 2);
    collect(request, outputs.back());
    return engine.submit(std::move(request)).refusal;
  };
  EXPECT_EQ(submit(), SubmitRefusal::kNone);
  gate.wait_until_reached();  // it is being computed, but the counts are those of the last step
  EXPECT_EQ(submit(), SubmitRefusal::kNone);
  EXPECT_EQ(submit(), SubmitRefusal::kNone);
  EXPECT_EQ(submit(), SubmitRefusal::kQueueFullRequests);
  outputs.pop_back();
  gate.open();
  engine.drain(60.0);
  for (const auto& output : outputs) EXPECT_EQ(output->check(), "");
  EXPECT_EQ(submit(), SubmitRefusal::kDraining);
}

TEST(Engine, RefusesPromptTokensBeyondTheQueuesLimit) {
  FakeRunner runner({});
  Gate gate;
  runner.before_step = [&](const Batch&) { gate.pass(); };
  EngineOptions options = small_options();
  options.max_num_queued_tokens = 50;
  Engine engine(options, runner, nullptr);
  const auto submit = [&](std::int32_t length) {
    GenerationRequest request = make_request(length, 1);
    collect(request, std::make_shared<Collected>());
    return engine.submit(std::move(request)).refusal;
  };
  EXPECT_EQ(submit(100), SubmitRefusal::kNone);  // alone, or it could never be served
  EXPECT_EQ(submit(10), SubmitRefusal::kQueueFullTokens);
  gate.open();
}

TEST(Engine, DrainEndsWhatIsLeftAfterItsTimeout) {
  FakeRunner runner({});
  runner.before_step = [](const Batch&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  Engine engine(small_options(), runner, nullptr);
  const auto output = std::make_shared<Collected>();
  GenerationRequest request = make_request(5, 400);
  collect(request, output);
  ASSERT_EQ(engine.submit(std::move(request)).refusal, SubmitRefusal::kNone);
  engine.drain(0.02);
  EXPECT_EQ(output->check(), "");
  EXPECT_EQ(output->choices[0].finish_reason, FinishReason::kAbort);
  EXPECT_LT(output->choices[0].tokens.size(), 400U);
}

TEST(Engine, AbortsAndStopsRunningChoices) {
  FakeRunner runner({});
  Engine engine(small_options(), runner, nullptr);
  std::atomic<RequestId> stopped = 0;
  const auto output = std::make_shared<Collected>();
  GenerationRequest request = make_request(5, 400);
  request.sampling.n = 2;
  collect(request, output);
  // As the server does on a stop string: from the callback, by mail.
  std::atomic<int> num_updates = 0;
  request.on_update = [&, record = request.on_update](OutputUpdate&& update) {
    if (update.finish_reason == FinishReason::kNone && ++num_updates == 10) {
      while (stopped == 0) std::this_thread::yield();
      engine.stop_choice(stopped, 1);
      engine.abort(stopped);
    }
    record(std::move(update));
  };
  stopped = engine.submit(std::move(request)).id;
  engine.drain(60.0);
  EXPECT_EQ(output->check(), "");
  EXPECT_EQ(output->choices[0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(output->choices[1].finish_reason, FinishReason::kStop);
}

TEST(Engine, EndsEverythingWhenDestroyed) {
  FakeRunner runner({});
  std::vector<std::shared_ptr<Collected>> outputs;
  {
    Engine engine(small_options(), runner, nullptr);
    for (int i = 0; i < 20; ++i) {
      outputs.push_back(std::make_shared<Collected>());
      GenerationRequest request = make_request(50, 400);
      collect(request, outputs.back());
      (void)engine.submit(std::move(request));
    }
  }
  for (const auto& output : outputs) EXPECT_EQ(output->check(), "");
}

TEST(Engine, IsBrokenWhenTheRunnerIs) {
  FakeRunner runner({});
  runner.failing_token = 61;
  runner.break_device();
  Engine engine(small_options(), runner, nullptr);
  const auto output = std::make_shared<Collected>();
  GenerationRequest request = make_request(5, 4);
  request.prompt.push_back(61);
  collect(request, output);
  ASSERT_EQ(engine.submit(std::move(request)).refusal, SubmitRefusal::kNone);
  while (!engine.stats().is_broken) std::this_thread::yield();
  GenerationRequest late = make_request(5, 4);
  EXPECT_EQ(engine.submit(std::move(late)).refusal, SubmitRefusal::kBroken);
  engine.drain(1.0);
  EXPECT_EQ(output->check(), "");
  EXPECT_EQ(output->choices[0].finish_reason, FinishReason::kError);
}

TEST(Engine, ForgetsPrefixesOnlyWhenIdleOrForced) {
  FakeRunner runner({});
  Gate gate;
  runner.before_step = [&](const Batch&) { gate.pass(); };
  Engine engine(small_options(), runner, nullptr);
  EXPECT_TRUE(engine.reset_prefix_cache(false));
  const auto output = std::make_shared<Collected>();
  GenerationRequest request = make_request(40, 300);
  collect(request, output);
  (void)engine.submit(std::move(request));
  gate.wait_until_reached();
  std::thread reset([&] {
    EXPECT_FALSE(engine.reset_prefix_cache(false));
    EXPECT_TRUE(engine.reset_prefix_cache(true));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the command is in the mailbox
  gate.open();
  reset.join();
  engine.drain(60.0);
  EXPECT_EQ(output->check(), "");
}

TEST(Engine, RefusesOptionsThatCannotWork) {
  FakeRunner runner({});
  EngineOptions options = small_options();
  options.max_num_batched_tokens = 3;
  try {
    const Engine engine(options, runner, nullptr);
    FAIL() << "4 sequences need 4 tokens a step";
  } catch (const Error& error) {
    EXPECT_EQ(error.param(), "max_num_batched_tokens");
  }
}

}  // namespace
}  // namespace winnow
