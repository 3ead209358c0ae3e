// Lengths follow each sequence's own luck, the batch, and the drafter's confidence.
#include "engine/draft_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "engine/scheduler.h"
#include "engine/speculate/measure_costs.h"
#include "engine/testing/fake_runner.h"

namespace winnow {
namespace {

constexpr std::int32_t kDrafts = 7;

/// Memory-bound: a row costs a twentieth of a step, a drafter's pass a tenth.
StepCosts memory_bound() {
  return {.bytes_per_second = 1e9,
          .fixed_seconds = 1e-3,
          .row_seconds = 5e-5,
          .draft_fixed_seconds = 1e-4};
}

SpeculationOptions adaptive() {
  SpeculationOptions options;
  options.num_drafts = kDrafts;
  options.is_adaptive = true;
  options.costs = memory_bound();
  return options;
}

/// Decoding sequences whose drafts are accepted with set chances.
class Batch {
 public:
  Batch(const SpeculationOptions& options, std::vector<double> rates)
      : planner_(options), rates_(std::move(rates)) {
    for (std::size_t i = 0; i < rates_.size(); ++i) {
      sequences_.push_back(std::make_unique<Sequence>());
      sequences_.back()->tokens.assign(100, 0);
    }
  }

  /// How the drafter's confidence comes out, given whether the draft will be accepted.
  enum class Head { kNone, kKnowing, kNoise };

  void step(Head head = Head::kNone) {
    std::vector<DraftPlanner::Candidate> candidates;
    std::vector<std::size_t> followed;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (!planner_.follows(*sequences_[i], static_cast<std::int32_t>(sequences_.size()))) continue;
      candidates.push_back({sequences_[i].get(), kDrafts});
      followed.push_back(i);
    }
    const auto chosen =
        planner_.choose(candidates, static_cast<std::int32_t>(sequences_.size()), 0);
    lengths.assign(sequences_.size(), 0);
    for (std::size_t i = 0; i < followed.size(); ++i) lengths[followed[i]] = chosen[i];
    std::vector<Chunk> chunks;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = *sequences_[i];
      sequence.draft.clear();
      chunks.push_back({.sequence = &sequence, .num_tokens = 1, .num_drafts = lengths[i]});
      std::int32_t num_right = 0;
      bool is_still_right = true;
      for (std::int32_t slot = 0; slot < lengths[i]; ++slot) {
        const bool is_right = uniform() < rates_[i];
        if (head != Head::kNone) {
          const double confidence = head == Head::kNoise ? uniform() : is_right ? 0.9 : 0.1;
          if (!planner_.keeps_slot(sequence, static_cast<float>(confidence))) break;
        }
        sequence.draft.tokens.push_back(0);
        is_still_right = is_still_right && is_right;
        num_right += is_still_right ? 1 : 0;
      }
      sequence.draft.verified.num_accepted = num_right;
      sequence.draft.verified.is_rejected = num_right < sequence.draft.size();
      num_drafted += sequence.draft.size();
      num_accepted += num_right;
    }
    planner_.observe(chunks);
  }

  DraftPlanner& planner() { return planner_; }

  /// Other sequences take the places of those there; true: the drafter follows the first.
  bool replace(double rate) {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      sequences_[i] = std::make_unique<Sequence>();
      sequences_[i]->tokens.assign(100, 0);
      rates_[i] = rate;
    }
    return planner_.follows(*sequences_.front(), static_cast<std::int32_t>(sequences_.size()));
  }

  int num_followed() const {
    return static_cast<int>(std::ranges::count_if(sequences_, [](const auto& sequence) {
      return sequence->drafting.is_followed.value_or(false);
    }));
  }

  std::vector<std::int32_t> lengths;  // of the last step
  std::int64_t num_drafted = 0, num_accepted = 0;

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  DraftPlanner planner_;
  std::vector<double> rates_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::mt19937_64 random_{7};
};

TEST(DraftPlanner, AFixedLengthIsForEveryone) {
  SpeculationOptions options;
  options.num_drafts = 5;
  DraftPlanner planner(options);
  Sequence a, b;
  EXPECT_TRUE(planner.follows(a, 2));
  const std::vector<DraftPlanner::Candidate> candidates = {{&a, 3}, {&b, 9}};
  const auto lengths = planner.choose(candidates, 2, 0);
  EXPECT_EQ(std::vector<std::int32_t>(lengths.begin(), lengths.end()),
            (std::vector<std::int32_t>{3, 5}));
  EXPECT_FALSE(planner.wants_costs());
  EXPECT_FALSE(planner.uses_confidence());
}

TEST(DraftPlanner, TheBatchMaySetTheLength) {
  SpeculationOptions options;
  options.num_drafts = 5;
  options.lengths_by_batch = {{1, 2, 4}, {3, 9, 0}};
  DraftPlanner planner(options);
  Sequence a;
  const std::vector<DraftPlanner::Candidate> one = {{&a, 9}};
  EXPECT_EQ(planner.choose(one, 1, 0)[0], 4);
  EXPECT_EQ(planner.choose(one, 3, 0)[0], 0);
  EXPECT_EQ(planner.choose(one, 10, 0)[0], 5);
}

TEST(DraftPlanner, LengthsFollowEachSequencesOwnLuck) {
  Batch batch(adaptive(), {0.95, 0.6, 0.0});
  for (int i = 0; i < 300; ++i) batch.step();
  EXPECT_GE(batch.lengths[0], 5);
  EXPECT_GT(batch.lengths[0], batch.lengths[1]);
  EXPECT_GT(batch.lengths[1], 0);
  int num_drafting = 0;  // but for a try now and then
  for (int i = 0; i < 200; ++i) {
    batch.step();
    num_drafting += batch.lengths[2] > 0 ? 1 : 0;
  }
  EXPECT_LT(num_drafting, 20);
}

TEST(DraftPlanner, AHeadThatKnowsSavesRows) {
  Batch blind(adaptive(), {0.7});
  Batch seeing(adaptive(), {0.7});
  for (int i = 0; i < 2000; ++i) {
    blind.step();
    seeing.step(Batch::Head::kKnowing);
  }
  const auto share = [](const Batch& batch) {
    return static_cast<double>(batch.num_accepted) / static_cast<double>(batch.num_drafted);
  };
  EXPECT_GT(share(seeing), 0.85);
  EXPECT_LT(share(blind), 0.75);
  EXPECT_GT(seeing.num_accepted, blind.num_accepted * 9 / 10);
}

// A head that was trained for another target, say: its numbers mean nothing and are not believed.
TEST(DraftPlanner, AHeadThatKnowsNothingCostsNothing) {
  Batch blind(adaptive(), {0.7});
  Batch misled(adaptive(), {0.7});
  for (int i = 0; i < 2000; ++i) {
    blind.step();
    misled.step(Batch::Head::kNoise);
  }
  EXPECT_GT(misled.num_accepted, blind.num_accepted * 9 / 10);
}

SpeculationOptions with_context_costs() {
  SpeculationOptions options = adaptive();
  options.costs->context_times = {{1, 2e-5}, {101, 2.02e-3}};
  return options;
}

// Keeping the drafter's context costs something, too.
TEST(DraftPlanner, ADrafterThatIsNoUseIsLeftAloneUntilItIs) {
  Batch batch(with_context_costs(), {0.0});
  for (int i = 0; i < 400; ++i) batch.step();
  const std::int64_t num_drafted = batch.num_drafted;
  int num_followed = 0;
  for (int i = 0; i < 64; ++i) {
    num_followed += batch.replace(0.0) ? 1 : 0;
    for (int k = 0; k < 100; ++k) batch.step();
  }
  // A share of 0.003 of 6,400 steps of 1.05 ms buys nine prompts with 16 tokens after each, and one
  // of 0.007 buys 180 tries of three drafts.
  EXPECT_GE(num_followed, 4);
  EXPECT_LE(num_followed, 16);
  EXPECT_LT(batch.num_drafted - num_drafted, 600);
  for (int i = 0; i < 64; ++i) {
    batch.replace(0.95);
    for (int k = 0; k < 300; ++k) batch.step();
  }
  EXPECT_TRUE(batch.replace(0.95));
  EXPECT_TRUE(batch.replace(0.95));
}

// Sixteen that begin at once: what is saved up is for one of them.
TEST(DraftPlanner, OneSequenceAtATimeIsFollowedToSeeWhetherItPays) {
  Batch batch(with_context_costs(), std::vector<double>(16, 0.0));
  for (int i = 0; i < 2000; ++i) batch.step();
  int most = 0;
  for (int i = 0; i < 40; ++i) {
    batch.replace(0.0);
    for (int k = 0; k < 100; ++k) batch.step();
    most = std::max(most, batch.num_followed());
  }
  EXPECT_LE(most, 1);
}

TEST(DraftPlanner, NothingIsDraftedWhilePausedOrAfterAFailure) {
  Batch batch(adaptive(), {0.9});
  batch.planner().pause(true);
  EXPECT_EQ(batch.planner().max_drafts(), 0);
  batch.step();
  EXPECT_EQ(batch.lengths[0], 0);
  batch.planner().pause(false);
  batch.step();
  EXPECT_GT(batch.lengths[0], 0);
  batch.planner().give_up();
  batch.step();
  EXPECT_EQ(batch.lengths[0], 0);
}

/// One sequence whose steps take set times, whatever costs say.
class TimedStream {
 public:
  TimedStream(double plain, double draft, double a_row)
      : plain_(plain), draft_(draft), row_(a_row) {
    SpeculationOptions options;
    options.num_drafts = kDrafts;
    options.is_adaptive = true;
    planner_ = std::make_unique<DraftPlanner>(options);
    StepCosts costs = memory_bound();
    costs.context_times = {{1, 1e-6}, {101, 1e-4}};
    planner_->set_costs(costs);
    begin();
  }

  void begin() {
    sequence_ = std::make_unique<Sequence>();
    sequence_->tokens.assign(100, 0);
  }

  /// A step, with a prompt of so many tokens in it besides.
  void step(double rate, double context, std::int32_t num_prompt_rows = 0) {
    std::vector<DraftPlanner::Candidate> candidates;
    const bool is_followed = planner_->follows(*sequence_, 1);
    if (is_followed) candidates.push_back({sequence_.get(), kDrafts});
    const auto chosen = planner_->choose(candidates, 1, num_prompt_rows);
    const std::int32_t length = chosen.empty() ? 0 : chosen[0];
    sequence_->draft.clear();
    sequence_->draft.tokens.assign(static_cast<std::size_t>(length), 0);
    std::int32_t num_right = 0;
    while (num_right < length && uniform() < rate) ++num_right;
    sequence_->draft.verified.num_accepted = num_right;
    sequence_->draft.verified.is_rejected = num_right < length;
    Sequence prompt;
    std::vector<Chunk> chunks = {
        {.sequence = sequence_.get(), .num_tokens = 1, .num_drafts = length}};
    if (num_prompt_rows > 0) {
      chunks.push_back({.sequence = &prompt, .num_tokens = num_prompt_rows});
    }
    planner_->observe(chunks);
    const StepTimes seen{.target = plain_ + row_ * length,
                         .draft = length > 0 ? draft_ : 0,
                         .context = is_followed ? context : 0};
    planner_->observe_step(seen, chunks);
    if (num_prompt_rows > 0) return;
    seconds += seen.total();
    tokens += 1 + num_right;
  }

  /// Tokens a second over those of plain decoding.
  double speed() const { return static_cast<double>(tokens) * plain_ / seconds; }

  double seconds = 0;
  std::int64_t tokens = 0;

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  double plain_, draft_, row_;
  std::unique_ptr<DraftPlanner> planner_;
  std::unique_ptr<Sequence> sequence_;
  std::mt19937_64 random_{11};
};

// As on a CPU: a drafter's pass that was measured in warm caches takes four times as long behind a
// step, rows cost, and so does following. Every prompt takes fifty steps' time, which is none of
// decoding's.
TEST(DraftPlanner, TimesThatCostsLeftOutAreLearntAndPaidFor) {
  for (const double rate : {0.0, 0.4, 0.6, 0.8}) {
    TimedStream stream(0.8e-3, 1.4e-3, 0.5e-3);
    for (int answer = 0; answer < 40; ++answer) {
      stream.begin();
      stream.step(rate, 9e-5, 256);
      for (int i = 0; i < 128; ++i) stream.step(rate, 9e-5);
    }
    EXPECT_GT(stream.speed(), 0.98) << rate;
  }
}

TEST(DraftPlanner, DraftsThatCostLittleAreMadeWhateverCostsSay) {
  TimedStream stream(1e-3, 5e-5, 1e-5);
  for (int i = 0; i < 2000; ++i) stream.step(0.8, 1e-6);
  EXPECT_GT(stream.speed(), 2.5);
}

// A machine that gets slow makes everything slow: not a reason to stop, and none to go on either
// way for long once it is fast again.
TEST(StepCorrection, FollowsTheMachine) {
  StepCorrection correction;
  const StepTimes plain{.target = 1e-3}, drafting{.target = 1.2e-3, .draft = 2e-4};
  const auto observe = [&](const StepTimes& expected, double factor, bool has_drafts) {
    correction.observe(4, has_drafts, expected,
                       {.target = expected.target * factor, .draft = expected.draft * factor});
  };
  EXPECT_EQ(correction.factors(4).plain, 1.0);
  observe(plain, 1.25, false);
  EXPECT_DOUBLE_EQ(correction.factors(4).plain, 1.25);   // the first counts whole
  EXPECT_DOUBLE_EQ(correction.factors(4).verify, 1.25);  // as far off as plain steps
  EXPECT_DOUBLE_EQ(correction.factors(64).plain, 1.25);  // as at any size
  observe(drafting, 2.5, true);
  EXPECT_DOUBLE_EQ(correction.factors(4).verify, 2.5);
  EXPECT_DOUBLE_EQ(correction.factors(4).draft, 2.5);
  EXPECT_DOUBLE_EQ(correction.factors(4).plain, 1.25);
  observe(plain, 1000.0, false);  // what no draft has to do with
  EXPECT_LT(correction.factors(4).plain, 2.0);
  for (int i = 0; i < 300; ++i) observe(plain, 1.0, false);
  EXPECT_NEAR(correction.factors(4).plain, 1.0, 0.01);
  for (int i = 0; i < 6; ++i) {  // rare, so each counts for much
    observe(drafting, 1.0, true);
    for (int k = 0; k < 100; ++k) observe(plain, 1.0, false);
  }
  EXPECT_LT(correction.factors(4).verify, 1.4);
  EXPECT_LT(correction.factors(64).draft, 1.4);
}

TEST(StepCorrection, WhatADeviceStillHasToDoIsNoFaultOfTheNextStep) {
  StepCorrection correction;
  for (int i = 0; i < 100; ++i) {  // a launch is all that the host sees
    correction.observe(1, false, {.target = 1e-3, .context = 1e-4},
                       {.target = 1.1e-3, .context = 5e-6});
  }
  EXPECT_NEAR(correction.factors(1).plain, 1.0, 0.01);
  EXPECT_EQ(correction.factors(1).context_seconds, 0);
  for (int i = 0; i < 100; ++i) {  // a CPU's caches are not as warm as when it was measured
    correction.observe(1, false, {.target = 1e-3, .context = 1e-5},
                       {.target = 1e-3, .context = 9e-5});
  }
  EXPECT_GT(correction.factors(1).context_seconds, 5e-5);
  EXPECT_LE(correction.factors(1).context_seconds, 8e-5);
}

// Whatever little room there is, and without reading what nobody wrote.
TEST(MeasureCosts, WorksOnPoolsAndStepsOfAnySize) {
  for (const std::int32_t num_blocks : {1, 3, 200}) {
    for (const std::int32_t max_tokens : {1, 5, 64}) {
      testing::FakeRunner runner({.num_blocks = num_blocks, .max_drafts = kDrafts});
      runner.poison_pool();
      const StepCosts costs = measure_step_costs(runner, {.num_drafts = 4,
                                                          .max_tokens = max_tokens,
                                                          .max_sequences = 8,
                                                          .max_model_len = num_blocks * 8,
                                                          .seconds = 0.05});
      EXPECT_NO_THROW(costs.validate());
      EXPECT_EQ(costs.step_times.front().count, 1);
      EXPECT_EQ(costs.verify_times.empty(), max_tokens == 1);
      EXPECT_EQ(costs.draft_times.front().count, 1);
      EXPECT_EQ(runner.num_foreign_slots, 0);
      EXPECT_EQ(runner.num_blind_slots, 0);
      EXPECT_LE(runner.max_batch_tokens, max_tokens);
    }
  }
}

TEST(StepTimes, AreReadBetweenAndBeyondWhatWasMeasured) {
  StepCosts costs{.bytes_per_second = 1e9};
  costs.step_times = {{1, 1.0}, {4, 4.0}, {8, 6.0}};
  costs.verify_times = {{2, 2.0}};
  costs.draft_times = {{1, 0.5}, {2, 0.75}};
  costs.draft_slot_seconds = 0.125;
  StepClock clock(costs);
  EXPECT_DOUBLE_EQ(clock.seconds({.num_rows = 1}), 1.0);
  EXPECT_DOUBLE_EQ(clock.seconds({.num_rows = 2}), 2.0);
  EXPECT_DOUBLE_EQ(clock.seconds({.num_rows = 6}), 5.0);
  EXPECT_DOUBLE_EQ(clock.seconds({.num_rows = 12}), 8.0);
  const StepLoad drafting{
      .num_rows = 6, .num_draft_rows = 3, .num_drafting = 3, .longest_draft = 1};
  EXPECT_DOUBLE_EQ(clock.seconds(drafting), 6.0 + 1.0 + 0.125);
  clock.set_factors({.verify = 2.0, .draft = 2.0});
  EXPECT_DOUBLE_EQ(clock.seconds(drafting), 2 * (6.0 + 1.0 + 0.125));
  EXPECT_DOUBLE_EQ(clock.seconds({.num_rows = 1}), 1.0);
  costs.step_times.push_back({16, 5.0});
  EXPECT_THROW(costs.validate(), Error);
}

}  // namespace
}  // namespace winnow
