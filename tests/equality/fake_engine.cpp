#include "fake_engine.h"

#include <memory>

namespace winnow::testing {

EngineOptions fake_engine_options() {
  EngineOptions options;
  options.max_model_len = 4096;
  options.max_num_seqs = 64;
  options.max_num_batched_tokens = 4096;
  options.stop_token_ids = {kFakeVocab - 1, kFakeVocab - 2};
  return options;
}

FakeEngine::FakeEngine(const EngineOptions& options, const FakeRunnerOptions& fake)
    : runner(fake), core(options, runner, nullptr), is_adaptive(options.speculation.is_adaptive) {
  if (options.speculation.num_drafts > 0) validate_options(options, runner);
}

FakeEngine::~FakeEngine() {
  EXPECT_EQ(runner.num_foreign_slots, 0);
  // Adaptive drafting does not follow everyone, and others find what they leave in the cache.
  if (!is_adaptive) {
    EXPECT_EQ(runner.num_blind_slots, 0);
  }
}

const Workload& FakeEngineTest::workload() {
  static const Workload kWorkload = mixed_workload(20, 40, kMaxPrompt, kMaxTokens, kFakeVocab);
  return kWorkload;
}

const Results& FakeEngineTest::alone() {
  static const Results kResults = [] {
    EngineOptions options = fake_engine_options();
    options.enable_prefix_caching = false;
    std::unique_ptr<FakeEngine> engine;
    return run_alone(workload(), [&]() -> EngineCore& {
      engine = std::make_unique<FakeEngine>(
          options,
          FakeRunnerOptions{.vocab_size = kFakeVocab, .block_tokens = 8, .num_blocks = 400});
      return engine->core;
    });
  }();
  return kResults;
}

}  // namespace winnow::testing
