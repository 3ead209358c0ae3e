// Lengths follow each sequence's own luck, the batch, and the drafter's confidence.
#include "engine/draft_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "engine/scheduler.h"

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

/// Seconds that steps take, whatever costs say.
struct Machine {
  double plain = 0;          // a step without drafts
  double pass = 0;           // of the drafter, for all
  double row = 0;            // of a draft
  double step_context = 0;   // of the drafter's context where anybody is followed
  double token_context = 0;  // and for each token of a followed sequence besides
};

/// Sequences on a machine.
class TimedBatch {
 public:
  TimedBatch(const Machine& machine, const StepCosts& costs, std::size_t num_sequences = 1)
      : machine_(machine), sequences_(num_sequences) {
    SpeculationOptions options;
    options.num_drafts = kDrafts;
    options.is_adaptive = true;
    planner_ = std::make_unique<DraftPlanner>(options);
    planner_->set_costs(costs);
    begin();
  }

  void begin() {
    for (auto& sequence : sequences_) {
      sequence = std::make_unique<Sequence>();
      sequence->tokens.assign(100, 0);
    }
  }

  /// A step, with a prompt of so many tokens in it besides.
  void step(double rate, std::int32_t num_prompt_rows = 0) {
    const auto size = static_cast<std::int32_t>(sequences_.size());
    std::vector<DraftPlanner::Candidate> candidates;
    for (auto& sequence : sequences_) {
      const bool is_new = !sequence->drafting.is_followed.has_value();
      sequence->draft.clear();
      if (!planner_->follows(*sequence, size)) continue;
      candidates.push_back({sequence.get(), kDrafts});
      if (is_new) seconds += machine_.token_context * sequence->num_tokens();
    }
    const auto chosen = planner_->choose(candidates, size, num_prompt_rows);
    std::int32_t num_drafts = 0, num_right = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      DraftBlock& draft = candidates[i].sequence->draft;
      const std::int32_t length = chosen[i];
      draft.tokens.assign(static_cast<std::size_t>(length), 0);
      Verified& verified = draft.verified;
      while (verified.num_accepted < length && uniform() < rate) ++verified.num_accepted;
      verified.is_rejected = verified.num_accepted < length;
      num_drafts += length;
      num_right += verified.num_accepted;
    }
    Sequence prompt;
    std::vector<Chunk> chunks;
    for (auto& sequence : sequences_) {
      chunks.push_back(
          {.sequence = sequence.get(), .num_tokens = 1, .num_drafts = sequence->draft.size()});
    }
    if (num_prompt_rows > 0) {
      chunks.push_back({.sequence = &prompt, .num_tokens = num_prompt_rows});
    }
    planner_->observe(chunks);
    const double context =
        machine_.step_context +
        machine_.token_context * (static_cast<double>(candidates.size()) + num_right);
    const StepTimes seen{.target = machine_.plain + machine_.row * num_drafts,
                         .draft = num_drafts > 0 ? machine_.pass : 0,
                         .context = candidates.empty() ? 0 : context};
    planner_->observe_step(seen, chunks);
    if (num_prompt_rows > 0) return;
    seconds += seen.total();
    tokens += size + num_right;
  }

  /// Answers of `num_steps` steps each.
  void answer(int num_answers, int num_steps, double rate) {
    for (int i = 0; i < num_answers; ++i) {
      begin();
      for (int k = 0; k < num_steps; ++k) step(rate);
    }
  }

  /// Tokens a second over those of plain decoding.
  double speed() const {
    return static_cast<double>(tokens) * machine_.plain /
           (seconds * static_cast<double>(sequences_.size()));
  }

  double seconds = 0;
  std::int64_t tokens = 0;

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  Machine machine_;
  std::unique_ptr<DraftPlanner> planner_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::mt19937_64 random_{11};
};

StepCosts with_small_contexts() {
  StepCosts costs = memory_bound();
  costs.context_times = {{1, 1e-6}, {101, 1e-4}};
  return costs;
}

// As on a CPU: a drafter's pass that was measured in warm caches takes four times as long behind a
// step, rows cost, and so does following. Every prompt takes fifty steps' time, which is none of
// decoding's.
TEST(DraftPlanner, TimesThatCostsLeftOutAreLearntAndPaidFor) {
  for (const double rate : {0.0, 0.4, 0.6, 0.8}) {
    TimedBatch batch({.plain = 0.8e-3, .pass = 1.4e-3, .row = 0.5e-3, .step_context = 9e-5},
                     with_small_contexts());
    for (int answer = 0; answer < 40; ++answer) {
      batch.begin();
      batch.step(rate, 256);
      for (int i = 0; i < 128; ++i) batch.step(rate);
    }
    EXPECT_GT(batch.speed(), 0.98) << rate;
  }
}

TEST(DraftPlanner, DraftsThatCostLittleAreMadeWhateverCostsSay) {
  TimedBatch batch({.plain = 1e-3, .pass = 5e-5, .row = 1e-5, .step_context = 1e-6},
                   with_small_contexts());
  for (int i = 0; i < 2000; ++i) batch.step(0.8);
  EXPECT_GT(batch.speed(), 2.5);
}

constexpr double kPlain = 2.1e-3, kRows = 8e-4, kContext = 8e-5;

/// Rows cost as on a CPU. With seven drafts each, all accepted, there are `gain` times the tokens a
/// second of plain decoding; the drafts of a single one of many sequences never pay.
Machine machine_of(double gain, std::int32_t num_sequences, double context = kContext) {
  const double whole = (1 + kDrafts) * kPlain / gain;
  const double rows = kDrafts * kRows;
  return {.plain = kPlain,
          .pass = whole - kPlain - rows - context * (1 + kDrafts),
          .row = kRows / num_sequences,
          .token_context = context / num_sequences};
}

StepCosts costs_of(const Machine& machine) {
  StepCosts costs{.bytes_per_second = 1e9,
                  .fixed_seconds = kPlain - kRows,
                  .row_seconds = machine.row,
                  .draft_fixed_seconds = machine.pass};
  costs.context_times = {{1, machine.token_context}, {101, 101 * machine.token_context}};
  return costs;
}

// Drafts that pay for all together and for nobody alone: a few trials of all show it, within the
// first answers.
TEST(DraftPlanner, WhatPaysIfAllDraftIsFoundSoon) {
  for (const std::int32_t num_sequences : {1, 2, 4, 8, 16}) {
    for (const double gain : {1.1, 1.2, 1.4}) {
      const Machine machine = machine_of(gain, num_sequences);
      TimedBatch batch(machine, costs_of(machine), static_cast<std::size_t>(num_sequences));
      batch.answer(8, 128, 1.0);
      EXPECT_GT(batch.speed(), 0.95 * gain) << num_sequences << ' ' << gain;
    }
  }
}

// Nor does it cost much where they do not pay: for want of acceptance, as costs say, or whatever
// they say.
TEST(DraftPlanner, WhatDoesNotPayIfAllDraftIsLeft) {
  for (const std::int32_t num_sequences : {1, 2, 4, 8, 16}) {
    const Machine good = machine_of(1.4, num_sequences), bad = machine_of(0.9, num_sequences);
    for (const double rate : {0.0, 0.3, 0.6, 0.8, 1.0}) {
      for (const Machine& told : {good, bad}) {
        TimedBatch batch(rate < 1 ? good : bad, costs_of(told),
                         static_cast<std::size_t>(num_sequences));
        batch.answer(8, 128, rate);
        EXPECT_GT(batch.speed(), 0.98) << num_sequences << ' ' << rate;
        batch.answer(72, 128, rate);
        EXPECT_GT(batch.speed(), 0.98) << num_sequences << ' ' << rate;
      }
    }
  }
}

// Where keeping up is dear it is so for each token that a step accepts.
TEST(DraftPlanner, AcceptedTokensArePaidForInTheDraftersContext) {
  const Machine machine = machine_of(0.9, 16, 0.15 * kPlain);
  TimedBatch batch(machine, costs_of(machine), 16);
  batch.answer(80, 128, 1.0);
  EXPECT_GT(batch.speed(), 0.98);
}

}  // namespace
}  // namespace winnow
