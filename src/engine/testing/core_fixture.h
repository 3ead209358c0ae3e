// An engine core over the fake runner, stepped by the test itself.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/engine_core.h"
#include "engine/testing/collector.h"
#include "engine/testing/fake_runner.h"

namespace winnow::testing {

class EngineCoreFixture : public ::testing::Test {
 protected:
  void start(const EngineOptions& options, const FakeRunnerOptions& runner = {}) {
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

  /// Steps until nothing is left, of requests, blocks and what else they held.
  void run_all() {
    for (int i = 0; i < 100000 && core_->has_work(); ++i) core_->step();
    EXPECT_FALSE(core_->has_work());
    core_->check_integrity();
    EXPECT_EQ(core_->stats().num_free_blocks, runner_->num_blocks());
    EXPECT_EQ(runner_->num_foreign_slots, 0);
    EXPECT_TRUE(core_->stats().adapters.empty());
  }

  EngineOptions options_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<EngineCore> core_;
  RequestId last_id_ = 0;
};

}  // namespace winnow::testing
