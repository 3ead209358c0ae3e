// Same request, same bits, on the fake runner: alone = in a batch = chunked = after a prefix hit =
// after eviction = after preemption = as one of n = with neighbours that come, fail and go.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "fake_engine.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kVocab = kFakeVocab;
using Bench = FakeEngine;

FakeRunnerOptions pool_of(std::int32_t num_blocks, std::int32_t block_tokens = 8) {
  return {.vocab_size = kVocab, .block_tokens = block_tokens, .num_blocks = num_blocks};
}

class EngineEquality : public FakeEngineTest {};

TEST_F(EngineEquality, AloneIsReproducible) {
  for (const auto& result : alone()) EXPECT_EQ(result->check(), "");
  std::unique_ptr<Bench> bench;
  const Results again = run_alone(workload(), [&]() -> EngineCore& {
    bench = std::make_unique<Bench>(fake_engine_options(), pool_of(300));
    return bench->core;
  });
  expect_equal(alone(), again, "again");
}

TEST_F(EngineEquality, InABatch) {
  for (const std::int32_t steps_between : {0, 1, 3}) {
    Bench bench(fake_engine_options(), pool_of(2000));
    expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = steps_between}),
                 "batch, arrivals every " + std::to_string(steps_between));
    EXPECT_EQ(bench.core.stats().num_preemptions, 0);
  }
}

TEST_F(EngineEquality, InChunksOfAnySize) {
  for (const std::int32_t budget : {1, 2, 3, 7, 8, 9, 15, 16, 17, 64, 100, 1000}) {
    EngineOptions options = fake_engine_options();
    options.max_num_batched_tokens = budget;
    options.max_num_seqs = std::min(budget, options.max_num_seqs);
    Bench bench(options, pool_of(2000));
    expect_equal(alone(), run_together(workload(), bench.core), "budget " + std::to_string(budget));
    EXPECT_LE(bench.runner.max_batch_tokens, budget);
  }
}

TEST_F(EngineEquality, WithALimitForLongPrefills) {
  EngineOptions options = fake_engine_options();
  options.max_num_batched_tokens = 128;
  options.max_num_seqs = 16;
  options.long_prefill_token_threshold = 20;
  Bench bench(options, pool_of(2000));
  expect_equal(alone(), run_together(workload(), bench.core), "long prefill threshold");
}

TEST_F(EngineEquality, WithATargetForTheTimeOfAStep) {
  for (const double target_ms : {1e-6, 0.01, 0.1}) {  // chunks vary from run to run
    EngineOptions options = fake_engine_options();
    options.target_itl_ms = target_ms;
    Bench bench(options, pool_of(200));
    expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = 2}),
                 "target " + std::to_string(target_ms));
  }
}

TEST_F(EngineEquality, AfterPrefixHitsOfTheWholeWorkload) {
  Bench bench(fake_engine_options(), pool_of(2000));
  expect_equal(alone(), run_together(workload(), bench.core), "first time");
  const std::int64_t computed = bench.runner.num_tokens;
  expect_equal(alone(), run_together(workload(), bench.core), "second time");
  EXPECT_LT(bench.runner.num_tokens - computed, computed);
  EXPECT_GT(bench.core.stats().prefix_hits, 0);
}

TEST_F(EngineEquality, WithoutPrefixCache) {
  EngineOptions options = fake_engine_options();
  options.enable_prefix_caching = false;
  Bench bench(options, pool_of(2000));
  expect_equal(alone(), run_together(workload(), bench.core), "first time");
  expect_equal(alone(), run_together(workload(), bench.core), "second time");
  EXPECT_EQ(bench.core.stats().cached_tokens, 0);
}

// Drawn where the logits are, with too few masks for the sets of banned tokens of some steps.
TEST_F(EngineEquality, WithARunnerThatDraws) {
  for (const std::int32_t num_masks : {1, 2, 16}) {
    FakeRunnerOptions fake = pool_of(200);
    fake.num_token_masks = num_masks;
    EngineOptions options = fake_engine_options();
    options.max_num_batched_tokens = 70;
    Bench bench(options, fake);
    expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = 1}),
                 "masks " + std::to_string(num_masks));
    EXPECT_GT(bench.runner.num_draws, 0);
    EXPECT_GT(bench.runner.num_masks_set, 0);
  }
}

TEST_F(EngineEquality, AfterPreemption) {
  // 24 blocks are the most one of these needs: everything else has to give way.
  for (const bool has_cache : {true, false}) {
    for (const std::int32_t num_blocks : {24, 30, 60, 100}) {
      EngineOptions options = fake_engine_options();
      options.enable_prefix_caching = has_cache;
      options.max_num_batched_tokens = 70;
      Bench bench(options, pool_of(num_blocks));
      const std::string what = "pool of " + std::to_string(num_blocks);
      expect_equal(alone(), run_together(workload(), bench.core), what);
      EXPECT_GT(bench.core.stats().num_preemptions, 0) << what;
      EXPECT_GT(bench.core.stats().recomputed_tokens, 0) << what;
    }
  }
}

TEST_F(EngineEquality, AfterEvictionChurn) {
  EngineOptions options = fake_engine_options();
  options.max_num_seqs = 2;
  Bench bench(options, pool_of(48));
  for (int round = 0; round < 4; ++round) {
    expect_equal(alone(), run_together(workload(), bench.core), "round " + std::to_string(round));
  }
}

TEST_F(EngineEquality, WithPriorities) {
  EngineOptions options = fake_engine_options();
  options.policy = SchedulingPolicy::kPriority;
  options.max_num_batched_tokens = 64;
  for (const std::int32_t max_num_seqs : {1, 3, 64}) {
    for (const std::int32_t num_blocks : {26, 60, 2000}) {
      options.max_num_seqs = max_num_seqs;
      Bench bench(options, pool_of(num_blocks));
      expect_equal(
          alone(), run_together(workload(), bench.core, {.steps_between = 2}),
          "seats " + std::to_string(max_num_seqs) + ", pool " + std::to_string(num_blocks));
    }
  }
}

TEST_F(EngineEquality, WithFewSeats) {
  for (const std::int32_t max_num_seqs : {1, 2, 5}) {
    EngineOptions options = fake_engine_options();
    options.max_num_seqs = max_num_seqs;
    Bench bench(options, pool_of(200));
    expect_equal(alone(), run_together(workload(), bench.core),
                 "seats " + std::to_string(max_num_seqs));
  }
}

TEST_F(EngineEquality, WithSamplingOnSeveralThreads) {
  ThreadPool pool(3);
  Bench bench(fake_engine_options(), pool_of(2000));
  bench.runner.pool = &pool;
  expect_equal(alone(), run_together(workload(), bench.core), "three threads");
}

TEST_F(EngineEquality, WithNeighboursThatAreCancelled) {
  EngineOptions options = fake_engine_options();
  options.max_num_batched_tokens = 48;
  options.max_num_seqs = 12;
  Bench bench(options, pool_of(80));
  const Workload noise = mixed_workload(99, 60, kMaxPrompt, kMaxTokens, kVocab);
  std::mt19937_64 random(4);
  RequestId next = 1000;
  std::vector<std::shared_ptr<Collected>> cancelled;
  const auto before_step = [&](std::int64_t step) {
    if (step % 3 == 0 && next < 1060) {
      GenerationRequest request = noise.requests[next - 1000];
      cancelled.push_back(std::make_shared<Collected>());
      collect(request, cancelled.back());
      bench.core.submit(next++, std::move(request), Clock::now());
    }
    if (next > 1000 && random() % 2 == 0) bench.core.abort(1000 + random() % (next - 1000));
    if (next > 1000 && random() % 2 == 0) {
      bench.core.stop_choice(1000 + random() % (next - 1000),
                             static_cast<std::int32_t>(random() % 3));
    }
  };
  expect_equal(alone(), run_together(workload(), bench.core, {.before_step = before_step}),
               "beside cancelled requests");
  for (const auto& collected : cancelled) EXPECT_EQ(collected->check(), "");
}

TEST_F(EngineEquality, WithNeighboursWhoseLogitsAreNaN) {
  Bench bench(fake_engine_options(), pool_of(2000));
  bench.runner.nan_token = kVocab - 3;  // in no prompt of the workload, but may be sampled
  Workload mixed;
  for (const GenerationRequest& request : workload().requests) {
    GenerationRequest poisoned = request;
    poisoned.prompt.push_back(kVocab - 3);
    poisoned.sampling.prompt_logprobs.reset();
    mixed.requests.push_back(request);
    mixed.requests.push_back(std::move(poisoned));
  }
  const Results results = run_together(mixed, bench.core);
  for (std::size_t i = 0; i < results.size(); i += 2) {
    const Collected& expected = *alone()[i / 2];
    bool meets_nan = false;  // generated the token after which logits break, and went on
    for (const ChoiceOutput& choice : expected.choices) {
      const auto at = std::ranges::find(choice.tokens, kVocab - 3);
      meets_nan |= at != choice.tokens.end() && at + 1 != choice.tokens.end();
    }
    if (!meets_nan) {
      EXPECT_EQ(first_difference(expected, *results[i]), "") << i;
    }
    EXPECT_EQ(results[i + 1]->check(), "");
    for (const ChoiceOutput& choice : results[i + 1]->choices) {
      EXPECT_EQ(choice.finish_reason, FinishReason::kError);
      EXPECT_TRUE(choice.tokens.empty());
    }
  }
  EXPECT_GT(bench.core.stats().num_corrupted_requests, 0);
}

TEST_F(EngineEquality, AfterAFailedStep) {
  EngineOptions options = fake_engine_options();
  options.max_num_seqs = 1;  // so that a failing request is alone in its step
  Bench bench(options, pool_of(60));
  bench.runner.failing_token = kVocab - 3;
  Workload mixed;
  for (const GenerationRequest& request : workload().requests) {
    GenerationRequest failing = request;
    failing.prompt.push_back(kVocab - 3);
    mixed.requests.push_back(std::move(failing));
    GenerationRequest kept = request;
    kept.sampling.logit_bias = {{kVocab - 3, -100.0F}};
    mixed.requests.push_back(std::move(kept));
  }
  Workload clean;
  for (std::size_t i = 1; i < mixed.requests.size(); i += 2) {
    clean.requests.push_back(mixed.requests[i]);
  }
  Bench other(fake_engine_options(), pool_of(2000));
  const Results expected = run_together(clean, other.core);
  const Results results = run_together(mixed, bench.core);
  for (std::size_t i = 0; i < results.size(); i += 2) {
    EXPECT_EQ(results[i]->check(), "");
    EXPECT_EQ(results[i]->choices[0].finish_reason, FinishReason::kError);
    EXPECT_EQ(results[i + 1]->check(), "");
    EXPECT_EQ(first_difference(*expected[i / 2], *results[i + 1]), "") << i;
  }
  EXPECT_EQ(bench.core.stats().num_failed_steps, std::ssize(workload().requests));
}

// cases.md B1, B2: a second conversation that shares its first tokens with the first.
class PrefixHit : public ::testing::TestWithParam<std::int32_t> {};

TEST_P(PrefixHit, EqualsAColdRun) {
  const std::int32_t shared = GetParam();
  const auto conversation = [&](std::uint64_t seed) {
    GenerationRequest request;
    request.prompt = make_prompt(seed, 3000, 0, kVocab - 4);
    request.sampling.max_tokens = 20;
    request.sampling.seed = 5;
    request.sampling.logprobs = 3;
    request.sampling.ignore_eos = true;
    return request;
  };
  Workload first, second;
  first.requests.push_back(conversation(1));
  second.requests.push_back(conversation(2));
  std::copy_n(first.requests[0].prompt.begin(), shared, second.requests[0].prompt.begin());

  for (const std::int32_t num_blocks : {25, 60}) {  // 24 are needed: B evicts A's tail, or nothing
    for (const std::int32_t budget : {4096, 500, 128}) {
      EngineOptions options = fake_engine_options();
      options.max_num_batched_tokens = budget;
      Bench cold(options, pool_of(60, 128));
      const Results expected = run_together(second, cold.core);
      Bench warm(options, pool_of(num_blocks, 128));
      (void)run_together(first, warm.core);
      const std::int64_t before = warm.runner.num_tokens;
      const Results results = run_together(second, warm.core);
      expect_equal(expected, results, std::to_string(shared) + " shared tokens");
      const std::int32_t cached = shared / 128 * 128;
      EXPECT_EQ(results[0]->stats.num_cached_tokens, cached);
      EXPECT_EQ(warm.runner.num_tokens - before, 3000 - cached + 19);
      // The same again: all but the last block of the prompt is there.
      const Results again = run_together(second, warm.core);
      expect_equal(expected, again, "again");
      EXPECT_EQ(again[0]->stats.num_cached_tokens, 2944);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SharedTokens, PrefixHit,
                         ::testing::Values(0, 1, 127, 128, 129, 2048, 2100));

// cases.md B2: the same prompt again with one token appended, at and around block boundaries.
TEST(EngineEqualityEdges, AnyPromptAgainWithOneMoreToken) {
  for (std::int32_t length = 1; length <= 40; ++length) {
    Bench warm(fake_engine_options(), pool_of(32));
    Workload workload;
    GenerationRequest request;
    request.prompt = make_prompt(6, length, 0, kVocab - 4);
    request.sampling.seed = 9;
    request.sampling.max_tokens = 20;
    request.sampling.ignore_eos = true;
    workload.requests = {request};
    (void)run_together(workload, warm.core);
    request.prompt.push_back(3);
    workload.requests = {request};
    Bench cold(fake_engine_options(), pool_of(32));
    const Results expected = run_together(workload, cold.core);
    const Results results = run_together(workload, warm.core);
    expect_equal(expected, results, std::to_string(length) + " tokens");
    EXPECT_EQ(results[0]->stats.num_cached_tokens, length / 8 * 8);
  }
}

// An agent's next turn: prompt, answer and more. Blocks of the answer are found as well.
TEST(EngineEqualityEdges, NextTurnFindsGeneratedBlocks) {
  Bench warm(fake_engine_options(), pool_of(64));
  GenerationRequest request;
  request.prompt = make_prompt(8, 30, 0, kVocab - 4);
  request.sampling.seed = 1;
  request.sampling.max_tokens = 30;
  request.sampling.ignore_eos = true;
  Workload turn;
  turn.requests = {request};
  const Results first = run_together(turn, warm.core);
  const std::vector<TokenId>& answer = first[0]->choices[0].tokens;
  request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
  request.prompt.insert(request.prompt.end(), {1, 2, 3});
  turn.requests = {request};
  const Results second = run_together(turn, warm.core);
  EXPECT_EQ(second[0]->stats.num_cached_tokens, 56);  // of 59 computed ones: 7 full blocks
  Bench cold(fake_engine_options(), pool_of(64));
  expect_equal(run_together(turn, cold.core), second, "second turn");
}

// cases.md B4: block 0 is a block, and what an earlier request left in it does not matter.
TEST(EngineEqualityEdges, PoolOfOneBlock) {
  EngineOptions options = fake_engine_options();
  options.max_model_len = 64;
  Workload x, y;
  GenerationRequest request;
  request.sampling.seed = 3;
  request.sampling.ignore_eos = true;
  request.prompt = make_prompt(1, 40, 0, kVocab - 4);
  request.sampling.max_tokens = 25;  // 64 slots in all: the last token's is not needed
  x.requests = {request};
  request.prompt = make_prompt(2, 9, 0, kVocab - 4);
  request.sampling.max_tokens = 12;
  y.requests = {request};
  Bench used(options, pool_of(1, 64));
  (void)run_together(x, used.core);
  const Results after = run_together(y, used.core);
  Bench fresh(options, pool_of(1, 64));
  expect_equal(run_together(y, fresh.core), after, "second request in the only block");
  EXPECT_EQ(used.core.stats().num_preemptions, 0);
}

// cases.md A8: the largest batch of one-token continuations is exactly what buffers hold.
TEST(EngineEqualityEdges, LargestBatchOfOneTokenContinuations) {
  EngineOptions options = fake_engine_options();
  options.max_num_seqs = 32;
  options.max_num_batched_tokens = 32;
  Workload workload;
  for (std::uint64_t i = 0; i < 32; ++i) {
    GenerationRequest request;
    request.prompt = make_prompt(i, 1, 0, kVocab - 4);
    request.sampling.seed = static_cast<std::int64_t>(i);
    request.sampling.max_tokens = 30;
    request.sampling.ignore_eos = true;
    workload.requests.push_back(std::move(request));
  }
  Bench bench(options, pool_of(200));
  std::unique_ptr<Bench> alone;
  const Results expected = run_alone(workload, [&]() -> EngineCore& {
    alone = std::make_unique<Bench>(options, pool_of(200));
    return alone->core;
  });
  expect_equal(expected, run_together(workload, bench.core), "32 sequences, 32 tokens");
  EXPECT_EQ(bench.runner.max_batch_tokens, 32);
  EXPECT_EQ(bench.runner.num_steps, 30);
}

TEST(EngineEqualityEdges, OtherWeightsAndSaltsFindNothing) {
  Bench bench(fake_engine_options(), pool_of(64));
  GenerationRequest request;
  request.prompt = make_prompt(1, 50, 0, kVocab - 4);
  request.sampling.seed = 3;
  Workload workload;
  workload.requests = {request};
  (void)run_together(workload, bench.core);
  workload.requests[0].cache_salt = "other user";
  EXPECT_EQ(run_together(workload, bench.core)[0]->stats.num_cached_tokens, 0);
  EXPECT_EQ(run_together(workload, bench.core)[0]->stats.num_cached_tokens, 48);
  bench.runner.set_weights(2);
  const Results changed = run_together(workload, bench.core);
  EXPECT_EQ(changed[0]->stats.num_cached_tokens, 0);
  Bench other(
      fake_engine_options(),
      FakeRunnerOptions{.vocab_size = kVocab, .block_tokens = 8, .num_blocks = 64, .weights = 2});
  expect_equal(run_together(workload, other.core), changed, "new weights");
}

}  // namespace
}  // namespace winnow::testing
