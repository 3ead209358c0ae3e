// Speculation changes when tokens come, never which: with greedy and coupled verification every
// request says bit for bit what it says without, whatever is drafted, batched, cached, preempted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "fake_engine.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kVocab = kFakeVocab;
using Bench = FakeEngine;

constexpr std::int32_t kDrafts = 7;

EngineOptions options_with(std::int32_t num_drafts, bool is_greedy_draft = true) {
  EngineOptions options = fake_engine_options();
  options.speculation.num_drafts = num_drafts;
  options.speculation.method = AcceptMethod::kCoupled;
  options.speculation.is_greedy_draft = is_greedy_draft;
  return options;
}

/// Lengths as they pay: rows cost something, so that what is rejected is soon not drafted.
EngineOptions adaptive_options(bool is_greedy_draft) {
  EngineOptions options = options_with(kDrafts, is_greedy_draft);
  options.speculation.is_adaptive = true;
  options.speculation.costs = StepCosts{.bytes_per_second = 1e9,
                                        .fixed_seconds = 1e-3,
                                        .row_seconds = 2e-4,
                                        .draft_fixed_seconds = 2e-4,
                                        .draft_slot_seconds = 2e-5};
  return options;
}

FakeRunnerOptions pool_of(std::int32_t num_blocks, std::int32_t percent_right = 70) {
  return {.vocab_size = kVocab,
          .block_tokens = 8,
          .num_blocks = num_blocks,
          .max_drafts = kDrafts,
          .percent_right = percent_right};
}

class EngineSpeculation : public FakeEngineTest {};

TEST_F(EngineSpeculation, EqualsPlainDecodingForEveryLength) {
  std::int64_t plain_steps = 0;
  for (const bool is_greedy_draft : {true, false}) {
    for (std::int32_t num_drafts = 0; num_drafts <= kDrafts; ++num_drafts) {
      Bench bench(options_with(num_drafts, is_greedy_draft), pool_of(2000));
      expect_equal(alone(), run_together(workload(), bench.core),
                   std::to_string(num_drafts) + " drafts");
      const EngineStats stats = bench.core.stats();
      if (num_drafts == 0) plain_steps = stats.num_steps;
      EXPECT_EQ(stats.accepted_tokens > 0, num_drafts > 0);
      EXPECT_EQ(stats.draft_tokens > stats.accepted_tokens, num_drafts > 0);
      if (num_drafts > 0) {
        EXPECT_LT(stats.num_steps, plain_steps);
      }
      EXPECT_EQ(stats.recomputed_tokens, 0);
    }
  }
}

TEST_F(EngineSpeculation, EqualsPlainDecodingHoweverOftenDraftsAreRight) {
  for (const std::int32_t percent_right : {0, 30, 100}) {
    for (const std::int32_t steps_between : {0, 1, 3}) {
      Bench bench(options_with(5, percent_right == 100), pool_of(2000, percent_right));
      expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = steps_between}),
                   std::to_string(percent_right) + " % right");
    }
  }
}

TEST_F(EngineSpeculation, EqualsPlainDecodingInStepsOfAnySize) {
  for (const std::int32_t budget : {1, 2, 3, 7, 8, 9, 16, 17, 64, 100}) {
    EngineOptions options = options_with(4);
    options.max_num_batched_tokens = budget;
    options.max_num_seqs = std::min(budget, options.max_num_seqs);
    Bench bench(options, pool_of(2000));
    expect_equal(alone(), run_together(workload(), bench.core), "budget " + std::to_string(budget));
    EXPECT_LE(bench.runner.max_batch_tokens, budget);
  }
}

TEST_F(EngineSpeculation, EqualsPlainDecodingAfterPrefixHits) {
  Bench bench(options_with(kDrafts), pool_of(2000));
  expect_equal(alone(), run_together(workload(), bench.core), "first time");
  const std::int64_t hits = bench.core.stats().prefix_hits;
  expect_equal(alone(), run_together(workload(), bench.core), "second time");
  EXPECT_GT(bench.core.stats().prefix_hits, hits);
}

// Accepted tokens are published, rejected ones never: a continuation finds its own past.
TEST_F(EngineSpeculation, AContinuationFindsTheOutputInTheCache) {
  for (const std::int32_t num_drafts : {0, 1, 4, kDrafts}) {
    Bench bench(options_with(num_drafts), pool_of(100));
    Workload one;
    one.requests.resize(1);
    GenerationRequest& request = one.requests.front();
    request.prompt = make_prompt(5, 21, 0, 60);
    request.sampling.max_tokens = 40;
    request.sampling.ignore_eos = true;
    request.sampling.seed = 3;
    const Results first = run_together(one, bench.core);
    const std::vector<TokenId>& output = first.front()->choices[0].tokens;
    ASSERT_EQ(output.size(), 40U);
    request.prompt.insert(request.prompt.end(), output.begin(), output.end());
    const Results second = run_together(one, bench.core);
    // 60 tokens were in the cache; with drafts the run may end before its last ones are named.
    EXPECT_GE(second.front()->stats.num_cached_tokens, 48);
    EXPECT_LE(second.front()->stats.num_cached_tokens, 56);
    Bench fresh(options_with(0), pool_of(100));
    expect_equal(run_together(one, fresh.core), second, "continuation");
  }
}

TEST_F(EngineSpeculation, EqualsPlainDecodingUnderPreemption) {
  for (const std::int32_t num_blocks : {27, 32, 48, 80}) {
    for (const SchedulingPolicy policy : {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
      EngineOptions options = options_with(kDrafts);
      options.policy = policy;
      options.max_num_batched_tokens = 96;
      Bench bench(options, pool_of(num_blocks));
      expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = 1}),
                   std::to_string(num_blocks) + " blocks");
      if (num_blocks < 48) {
        EXPECT_GT(bench.core.stats().num_preemptions, 0);
      }
      EXPECT_GT(bench.core.stats().accepted_tokens, 0);
    }
  }
}

TEST_F(EngineSpeculation, EqualsPlainDecodingWithThreadsAndARunnerThatDraws) {
  ThreadPool pool(3, false);
  for (const bool is_greedy_draft : {true, false}) {
    EngineStats sampled_here;
    for (const std::int32_t num_masks : {0, 2}) {
      for (const bool draws_drafts : {false, true}) {
        FakeRunnerOptions fake = pool_of(300);
        fake.num_token_masks = num_masks;
        fake.draws_drafts = draws_drafts;
        EngineOptions options = options_with(3, is_greedy_draft);
        options.max_num_batched_tokens = 70;
        Bench bench(options, fake);
        bench.runner.pool = &pool;
        expect_equal(alone(), run_together(workload(), bench.core), "threads");
        const EngineStats stats = bench.core.stats();
        EXPECT_EQ(bench.runner.num_drawn_drafts > 0, draws_drafts);
        // Most rows that verify drafts, not only those of other steps.
        if (num_masks > 0) {
          EXPECT_GT(bench.runner.num_draws, stats.draft_tokens / 3);
        }
        if (num_masks == 0 && !draws_drafts) sampled_here = stats;
        EXPECT_EQ(stats.draft_tokens, sampled_here.draft_tokens);
        EXPECT_EQ(stats.accepted_tokens, sampled_here.accepted_tokens);
        EXPECT_EQ(stats.num_steps, sampled_here.num_steps);
      }
    }
  }
}

TEST_F(EngineSpeculation, EqualsPlainDecodingWithLengthsThatAdapt) {
  std::map<std::int32_t, std::int64_t> drafted;
  for (const std::int32_t percent_right : {0, 30, 70, 100}) {
    for (const bool has_confidence : {false, true}) {
      for (const std::int32_t num_blocks : {27, 2000}) {
        EngineOptions options = adaptive_options(/*is_greedy_draft=*/percent_right == 30);
        options.max_num_batched_tokens = num_blocks == 27 ? 96 : 4096;
        FakeRunnerOptions fake = pool_of(num_blocks, percent_right);
        fake.has_confidence = has_confidence;
        Bench bench(options, fake);
        for (int round = 0; round < 2; ++round) {  // the second from the prefix cache
          expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = 1}),
                       fmt::format("{} % right, confidence {}, {} blocks", percent_right,
                                   has_confidence, num_blocks));
        }
        if (num_blocks == 2000 && !has_confidence) {
          drafted[percent_right] = bench.core.stats().draft_tokens;
        }
        EXPECT_GT(bench.core.stats().draft_tokens, 0);
        if (percent_right >= 70) {  // of what is only tried all may be wrong
          EXPECT_GT(bench.core.stats().accepted_tokens, 0);
        }
      }
    }
  }
  // At these costs one right in three pays no more than none: both are only tried.
  EXPECT_LT(2 * drafted[0], drafted[100]);
  EXPECT_LT(2 * drafted[30], drafted[100]);
}

TEST_F(EngineSpeculation, EqualsPlainDecodingWithEveryOtherChoice) {
  std::vector<EngineOptions> variants;
  variants.push_back(options_with(kDrafts));
  variants.back().speculation.lengths_by_batch = {{1, 2, 7}, {3, 8, 2}, {9, 20, 0}};
  variants.push_back(options_with(kDrafts, /*is_greedy_draft=*/false));
  variants.back().speculation.draft_top_k = 3;
  variants.push_back(options_with(kDrafts));
  variants.back().speculation.max_model_len = 90;
  for (const EngineOptions& options : variants) {
    Bench bench(options, pool_of(2000));
    expect_equal(alone(), run_together(workload(), bench.core, {.steps_between = 1}), "variant");
    EXPECT_GT(bench.core.stats().accepted_tokens, 0);
  }
}

TEST_F(EngineSpeculation, DraftingStopsAndResumesBetweenRequests) {
  Bench bench(options_with(kDrafts), pool_of(2000));
  std::int64_t num_drafts = 0;
  for (const bool is_on : {true, false, true}) {
    ASSERT_TRUE(bench.core.set_drafting(is_on));
    expect_equal(alone(), run_together(workload(), bench.core), "switched");
    EXPECT_EQ(bench.core.stats().num_drafts > num_drafts, is_on);
    num_drafts = bench.core.stats().num_drafts;
  }
}

TEST_F(EngineSpeculation, AFailingDrafterCostsNoOutput) {
  for (const bool fails_to_draft : {true, false}) {
    Bench bench(options_with(4), pool_of(2000));
    const auto break_drafter = [&](std::int64_t step) {
      if (step < 6) return;
      (fails_to_draft ? bench.runner.fails_to_draft : bench.runner.fails_to_commit) = true;
    };
    expect_equal(alone(), run_together(workload(), bench.core, {.before_step = break_drafter}),
                 "failing drafter");
    EXPECT_EQ(bench.core.stats().num_failed_steps, 0);
  }
}

// The other requests are not disturbed, and all blocks come back.
TEST_F(EngineSpeculation, NeighboursMayBeAbortedAndStopped) {
  Bench bench(options_with(kDrafts), pool_of(120));
  std::vector<std::shared_ptr<Collected>> neighbours;
  constexpr RequestId kFirst = 1000;
  const auto disturb = [&](std::int64_t step) {
    if (step % 3 == 0 && neighbours.size() < 30) {
      GenerationRequest request;
      request.prompt = make_prompt(static_cast<std::uint64_t>(step), 30, 0, 60);
      request.sampling.max_tokens = 50;
      request.sampling.n = 2;
      request.sampling.ignore_eos = true;
      neighbours.push_back(std::make_shared<Collected>());
      collect(request, neighbours.back());
      bench.core.submit(kFirst + neighbours.size(), std::move(request), Clock::now());
    }
    if (step % 5 == 4) bench.core.abort(kFirst + static_cast<RequestId>(step) / 5);
    if (step % 4 == 3) bench.core.stop_choice(kFirst + static_cast<RequestId>(step) / 4, 1);
  };
  expect_equal(alone(),
               run_together(workload(), bench.core, {.steps_between = 1, .before_step = disturb}),
               "neighbours");
  for (const auto& neighbour : neighbours) EXPECT_EQ(neighbour->check(), "");
}

// Not token by token: but within max_tokens, inside the cache, and each run well formed.
TEST_F(EngineSpeculation, OtherMethodsKeepTheRules) {
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    for (const bool is_greedy_draft : {true, false}) {
      EngineOptions options = options_with(kDrafts, is_greedy_draft);
      options.speculation.method = method;
      Bench bench(options, pool_of(60));
      const Results results = run_together(workload(), bench.core, {.steps_between = 1});
      for (std::size_t i = 0; i < results.size(); ++i) {
        const SamplingParams& sampling = workload().requests[i].sampling;
        EXPECT_EQ(results[i]->check(), "");
        for (const ChoiceOutput& choice : results[i]->choices) {
          EXPECT_LE(std::ssize(choice.tokens), sampling.max_tokens);
          EXPECT_EQ(choice.error, "");
        }
        if (sampling.temperature == 0.0F) {
          EXPECT_EQ(first_difference(*alone()[i], *results[i]), "") << "greedy request " << i;
        }
      }
      EXPECT_GT(bench.core.stats().accepted_tokens, 0);
    }
  }
}

}  // namespace
}  // namespace winnow::testing
