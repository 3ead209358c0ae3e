#include "engine/speculate/draft_length.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"

namespace winnow {
namespace {

/// Bytes of the kind that a large MoE model reads: experts outweigh the rest.
StepCosts memory_bound() {
  return {.bytes_per_second = 4e12,
          .fixed_seconds = 1e-3,
          .row_seconds = 2e-6,
          .dense_bytes = 8e9,
          .expert_bytes = 1.5e9,
          .num_experts = 128,
          .experts_per_token = 4,
          .draft_fixed_seconds = 2e-4,
          .draft_slot_seconds = 3e-5,
          .draft_row_seconds = 1e-6,
          .drafter_bytes = 4.8e9};
}

Survival geometric(double rate) {
  Survival survival;
  double so_far = 1;
  for (double& s : survival) s = so_far *= rate;
  return survival;
}

std::vector<DraftForecast> requests_of(const std::vector<double>& rates, std::int32_t limit = 7) {
  std::vector<DraftForecast> requests;
  for (const double rate : rates) {
    requests.push_back({.survival = geometric(rate), .limit = limit, .kv_bytes = 2e8});
  }
  return requests;
}

DraftPlan choose(const std::vector<DraftForecast>& requests, const DraftLengthOptions& options,
                 const StepCosts& costs = memory_bound(), std::int32_t num_other_rows = 0) {
  DraftLengthChooser chooser(costs, options);
  DraftPlan plan;
  chooser.choose(requests, {.num_prompt_rows = num_other_rows}, 0, plan);
  return plan;
}

double rate_of(const DraftPlan& plan) { return plan.expected_tokens / plan.seconds; }

double rate_of(const std::vector<DraftForecast>& requests, const std::vector<std::int32_t>& lengths,
               const StepCosts& costs) {
  StepClock clock(costs);
  StepLoad load;
  double tokens = 0;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    load.num_rows += 1 + lengths[r];
    load.num_draft_rows += lengths[r];
    load.longest_draft = std::max(load.longest_draft, lengths[r]);
    load.kv_bytes += requests[r].kv_bytes;
    tokens += 1;
    for (std::int32_t i = 0; i < lengths[r]; ++i) {
      tokens += requests[r].survival[static_cast<std::size_t>(i)];
    }
  }
  return tokens / clock.seconds(load);
}

TEST(StepCosts, DistinctExpertsFollowTheFormula) {
  EXPECT_EQ(expected_distinct_experts(128, 4, 0), 0);
  EXPECT_NEAR(expected_distinct_experts(128, 4, 1), 4, 1e-9);
  EXPECT_NEAR(expected_distinct_experts(128, 4, 8), 28.7, 0.1);  // about 29 of 8 tokens
  EXPECT_NEAR(expected_distinct_experts(128, 4, 4000), 128, 1e-6);
  EXPECT_EQ(expected_distinct_experts(0, 0, 5), 0);
}

TEST(StepCosts, SecondsAreBytesOverBandwidthPlusFixedCosts) {
  StepClock clock(memory_bound());
  EXPECT_NEAR(clock.seconds({.num_rows = 1, .kv_bytes = 4e9}),
              1e-3 + 2e-6 + (8e9 + 4 * 1.5e9 + 4e9) / 4e12, 1e-12);
  const double drafted = clock.seconds({.num_rows = 8, .num_draft_rows = 7, .longest_draft = 7});
  EXPECT_NEAR(drafted,
              1e-3 + 8 * 2e-6 + 2e-4 + 7 * 3e-5 + 7e-6 +
                  (8e9 + expected_distinct_experts(128, 4, 8) * 1.5e9 + 4.8e9) / 4e12,
              1e-12);
}

TEST(StepCosts, ImpossibleCostsAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    StepCosts costs = memory_bound();
    costs.bytes_per_second = bad;
    EXPECT_THROW(costs.validate(), Error);
  }
  StepCosts costs = memory_bound();
  costs.drafter_bytes = nan;
  EXPECT_THROW(costs.validate(), Error);
  costs = memory_bound();
  costs.experts_per_token = 129;
  EXPECT_THROW(costs.validate(), Error);
}

TEST(AcceptanceHistory, RatesMoveFromThePriorToWhatWasSeen) {
  AcceptanceHistory history(0.97);
  EXPECT_EQ(history.rate(0, 0.7, 4), 0.7);
  history.observe(0, false);  // nothing was tested
  EXPECT_EQ(history.rate(0, 0.7, 4), 0.7);
  for (int i = 0; i < 300; ++i) history.observe(i % 2 == 0 ? 2 : 0, true);
  EXPECT_NEAR(history.rate(0, 0.7, 4), 0.5, 0.05);
  EXPECT_GT(history.rate(1, 0.0, 4), 0.75);  // passed whenever it was tested
  EXPECT_LT(history.rate(2, 1.0, 4), 0.25);  // never
  EXPECT_EQ(history.rate(3, 0.3, 4), 0.3);   // not known
  for (int i = 0; i < 300; ++i) history.observe(0, true);
  EXPECT_LT(history.rate(0, 0.7, 4), 0.12);  // old evidence fades
}

TEST(AcceptanceHistory, ABlockThatEndedCountsNoRefusal) {
  AcceptanceHistory history(1.0);
  history.observe(2, false);
  EXPECT_EQ(history.rate(1, 0, 1), 0.5);
  EXPECT_EQ(history.rate(2, 0.25, 1), 0.25);
}

TEST(DraftLength, EqualsExhaustiveSearch) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  DraftLengthOptions options{.max_length = 4, .hysteresis = 0, .exploration = 0};
  for (int round = 0; round < 300; ++round) {
    StepCosts costs = memory_bound();
    costs.expert_bytes *= uniform(random) * 2;
    costs.drafter_bytes *= uniform(random) * 2;
    costs.row_seconds = 1e-3 * uniform(random) * uniform(random);
    const std::vector<DraftForecast> requests =
        requests_of({uniform(random), uniform(random), uniform(random)}, 4);
    double best = 0;
    for (std::int32_t code = 0; code < 125; ++code) {
      best = std::max(best, rate_of(requests, {code % 5, code / 5 % 5, code / 25}, costs));
    }
    const DraftPlan plan = choose(requests, options, costs);
    EXPECT_NEAR(rate_of(plan), best, 1e-9 * best);
    EXPECT_NEAR(rate_of(requests, plan.lengths, costs), best, 1e-9 * best);
  }
}

TEST(DraftLength, NeverExpectsLessThanPlainDecoding) {
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const DraftLengthOptions options{.exploration = 0};
  for (int round = 0; round < 500; ++round) {
    StepCosts costs = memory_bound();
    costs.drafter_bytes *= 10 * uniform(random) * uniform(random);
    std::vector<double> rates(1 + random() % 40);
    for (double& rate : rates) rate = uniform(random);
    std::vector<DraftForecast> requests = requests_of(rates);
    for (DraftForecast& request : requests) {
      request.previous = static_cast<std::int32_t>(random() % 9) - 1;
      request.limit = static_cast<std::int32_t>(random() % 8);
    }
    const auto other_rows = static_cast<std::int32_t>(random() % 3 * 500);
    const DraftPlan plan = choose(requests, options, costs, other_rows);
    for (DraftForecast& request : requests) request.limit = 0;
    const DraftPlan plain = choose(requests, options, costs, other_rows);
    EXPECT_GE(rate_of(plan), rate_of(plain) * (1 - 1e-12));
    EXPECT_EQ(plain.expected_tokens, static_cast<double>(requests.size()));
  }
}

// One sequence's drafts may be worth its own while and yet not everybody's.
TEST(DraftLength, SequencesThatCannotDraftWaitForThoseThatDo) {
  const StepCosts costs{.bytes_per_second = 1e9,
                        .fixed_seconds = 1e-3,
                        .row_seconds = 5e-5,
                        .draft_fixed_seconds = 4e-4};
  DraftLengthChooser chooser(costs, {.exploration = 0});
  const std::vector<DraftForecast> lucky{{.survival = geometric(0.95), .limit = 7}};
  DraftPlan plan;
  chooser.choose(lucky, {}, 0, plan);
  EXPECT_EQ(plan.lengths[0], 7);
  for (const std::int32_t num_others : {63, 200}) {
    chooser.choose(lucky, {.num_sequences = num_others}, 0, plan);
    EXPECT_EQ(plan.lengths[0], 0);
    EXPECT_EQ(plan.expected_tokens, 1.0 + num_others);
    EXPECT_DOUBLE_EQ(plan.seconds_per_token, plan.seconds / (1.0 + num_others));
  }
}

TEST(DraftLength, TheGainIsWhatDraftsSaveAgainstPlainDecoding) {
  const StepCosts costs{.bytes_per_second = 1e9,
                        .fixed_seconds = 1e-3,
                        .row_seconds = 5e-5,
                        .draft_fixed_seconds = 1e-4};
  DraftLengthChooser chooser(costs, {.exploration = 0});
  const std::vector<DraftForecast> lucky{{.survival = geometric(0.95), .limit = 7}};
  DraftPlan plan;
  chooser.choose(lucky, {}, 0, plan);
  const double plain = 1.05e-3;
  EXPECT_NEAR(plan.plain_seconds, plain, 1e-12);
  EXPECT_NEAR(plan.gain_seconds, plan.expected_tokens * plain - plan.seconds, 1e-12);
  EXPECT_NEAR(chooser.gain(lucky), plan.gain_seconds, 1e-12);
  EXPECT_GT(plan.gain_seconds, 0);
  const std::vector<DraftForecast> hopeless{{.survival = geometric(0.01), .limit = 7}};
  EXPECT_EQ(chooser.gain(hopeless), 0);
  chooser.choose({}, {.num_prompt_rows = 500}, 0, plan);  // nobody decodes
  EXPECT_EQ(plan.gain_seconds, 0);
  EXPECT_GT(plan.plain_seconds, 0.025);
}

TEST(DraftLength, GrowsWithAcceptanceAndKeepsToItsLimits) {
  const DraftLengthOptions options{.hysteresis = 0, .exploration = 0};
  std::int32_t before = 0;
  for (const double rate : {0.02, 0.3, 0.6, 0.8, 0.95}) {
    const std::int32_t length = choose(requests_of({rate}), options).lengths[0];
    EXPECT_GE(length, before);
    before = length;
  }
  EXPECT_EQ(choose(requests_of({0.02}), options).lengths[0], 0);
  EXPECT_EQ(before, 7);
  EXPECT_EQ(choose(requests_of({0.95}, 2), options).lengths[0], 2);
  EXPECT_EQ(choose(requests_of({0.95}, 0), options).lengths[0], 0);
  EXPECT_TRUE(choose({}, options).lengths.empty());
  const std::vector<std::int32_t> mixed = choose(requests_of({0.95, 0.1}), options).lengths;
  EXPECT_GT(mixed[0], mixed[1]);
}

TEST(DraftLength, LargeBatchesThatReadAllExpertsAnywayDraftByTheirRows) {
  const DraftLengthOptions options{.hysteresis = 0, .exploration = 0};
  StepCosts compute_bound = memory_bound();
  compute_bound.row_seconds = 3e-4;
  const auto length = [&](std::size_t batch) {
    return choose(requests_of(std::vector<double>(batch, 0.75)), options, compute_bound).lengths[0];
  };
  EXPECT_GT(length(1), 0);
  EXPECT_LT(length(512), length(1));  // rows cost, bytes no longer do
}

TEST(DraftLength, DoesNotFlap) {
  DraftLengthOptions options{.exploration = 0};
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> noise(-0.02, 0.02);
  const auto count_changes = [&](double hysteresis) {
    options.hysteresis = hysteresis;
    std::vector<DraftForecast> requests = requests_of({0.75, 0.8});
    int changes = 0;
    for (int step = 0; step < 400; ++step) {
      for (std::size_t r = 0; r < 2; ++r) {
        requests[r].survival = geometric((r == 0 ? 0.75 : 0.8) + noise(random));
      }
      const DraftPlan plan = choose(requests, options);
      for (std::size_t r = 0; r < 2; ++r) {
        changes += step > 0 && plan.lengths[r] != requests[r].previous ? 1 : 0;
        requests[r].previous = plan.lengths[r];
      }
    }
    return changes;
  };
  const int num_free = count_changes(0.0);
  EXPECT_GT(num_free, 40);
  EXPECT_LE(count_changes(0.03), num_free / 10);
}

TEST(DraftLength, IsAPureFunction) {
  const DraftLengthOptions options;
  DraftLengthChooser chooser(memory_bound(), options);
  const std::vector<DraftForecast> a = requests_of({0.9, 0.5, 0.2}), b = requests_of({0.1});
  DraftPlan first, other, again;
  chooser.choose(a, {.num_prompt_rows = 100}, 1e-3, first);
  chooser.choose(b, {}, 1.0, other);
  chooser.choose(a, {.num_prompt_rows = 100}, 1e-3, again);
  EXPECT_EQ(first.lengths, again.lengths);
  EXPECT_EQ(first.seconds, again.seconds);
  EXPECT_EQ(first.exploration_seconds, again.exploration_seconds);
}

/// Time of `num_steps` tokens' worth of drafting with these true rates, over that of plain steps.
double simulated_speed(double true_rate, int num_steps, const DraftLengthOptions& options) {
  DraftLengthChooser chooser(memory_bound(), options);
  AcceptanceHistory engine(kEngineDecay), sequence(kSequenceDecay);
  DraftForecast request{.limit = 7, .kv_bytes = 2e8};
  DraftPlan plan;
  std::mt19937_64 random(10);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  StepClock clock(memory_bound());
  const double plain = clock.seconds({.num_rows = 1, .kv_bytes = 2e8});
  double seconds = 0, tokens = 0;
  for (int step = 0; step < num_steps; ++step) {
    request.survival = forecast_survival(sequence, engine, options);
    chooser.choose({&request, 1}, {}, plan.exploration_seconds, plan);
    const std::int32_t length = plan.lengths[0];
    std::int32_t accepted = 0;
    while (accepted < length && uniform(random) < true_rate) ++accepted;
    seconds += plan.seconds;
    tokens += 1 + accepted;
    sequence.observe(accepted, accepted < length);
    engine.observe(accepted, accepted < length);
    if (plan.probed == 0) plan.settle_probe(accepted);
    request.previous = plan.probed == 0 ? 0 : length;
  }
  return tokens / seconds * plain;
}

TEST(DraftLength, HopelessDraftsCostAtMostTwoPercent) {
  for (const double rate : {0.0, 0.05, 0.2}) {
    EXPECT_GT(simulated_speed(rate, 3000, {}), 0.98) << rate;
  }
}

TEST(DraftLength, GoodDraftsBringWhatTheBestFixedLengthBrings) {
  const DraftLengthOptions options;
  for (const double rate : {0.7, 0.8, 0.9, 0.95, 1.0}) {
    double best = 0;
    for (std::int32_t length = 0; length <= 7; ++length) {
      best = std::max(best, rate_of(requests_of({rate}), {length}, memory_bound()));
    }
    best /= rate_of(requests_of({rate}), {0}, memory_bound());
    EXPECT_GT(simulated_speed(rate, 3000, options), 0.96 * best) << rate;
    EXPECT_GT(best, 1.05) << rate;
  }
}

// A sequence lives 300 steps; each newcomer is believed what the engine has learnt.
TEST(DraftLength, BatchesOfNewcomersAreNotSlowedByHopelessDrafts) {
  const DraftLengthOptions options;
  std::mt19937_64 random(12);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (const std::vector<double>& rates :
       {std::vector<double>(16, 0.05), std::vector<double>{0.9, 0.05, 0.9, 0.05}}) {
    DraftLengthChooser chooser(memory_bound(), options);
    AcceptanceHistory engine(kEngineDecay);
    std::vector<AcceptanceHistory> histories(rates.size(), AcceptanceHistory(kSequenceDecay));
    std::vector<DraftForecast> requests = requests_of(rates);
    DraftPlan plan;
    double seconds = 0, tokens = 0;
    for (int step = 0; step < 3000; ++step) {
      for (std::size_t r = 0; r < rates.size(); ++r) {
        if (step % 300 == 0) {
          histories[r] = AcceptanceHistory(kSequenceDecay);
          requests[r].previous = -1;
        }
        requests[r].survival = forecast_survival(histories[r], engine, options);
        requests[r].hope = forecast_hope(histories[r], engine, options);
      }
      chooser.choose(requests, {}, plan.exploration_seconds, plan);
      seconds += plan.seconds;
      for (std::size_t r = 0; r < rates.size(); ++r) {
        const std::int32_t length = plan.lengths[r];
        std::int32_t accepted = 0;
        while (accepted < length && uniform(random) < rates[r]) ++accepted;
        tokens += 1 + accepted;
        histories[r].observe(accepted, accepted < length);
        engine.observe(accepted, accepted < length);
        const bool is_probe = static_cast<std::int32_t>(r) == plan.probed;
        if (is_probe) plan.settle_probe(accepted);
        requests[r].previous = is_probe ? 0 : length;
      }
    }
    const std::vector<DraftForecast> truth = requests_of(rates);
    const double plain = rate_of(truth, std::vector<std::int32_t>(rates.size()), memory_bound());
    const double best = rate_of(choose(truth, {.hysteresis = 0, .exploration = 0}));
    EXPECT_GT(tokens / seconds, 0.98 * plain);
    EXPECT_GT(tokens / seconds, 0.95 * best);
  }
}

TEST(DraftLength, ProbesFindOutThatDraftsHaveBecomeGood) {
  DraftLengthOptions options;
  AcceptanceHistory engine(kEngineDecay), sequence(kSequenceDecay);
  for (int i = 0; i < 200; ++i) {
    engine.observe(0, true);
    sequence.observe(0, true);
  }
  DraftLengthChooser chooser(memory_bound(), options);
  DraftForecast request{.limit = 7, .kv_bytes = 2e8};
  DraftPlan plan;
  int num_probes = 0, first_kept = -1;
  for (int step = 0; step < 20'000 && first_kept < 0; ++step) {
    request.survival = forecast_survival(sequence, engine, options);
    chooser.choose({&request, 1}, {}, plan.exploration_seconds, plan);
    num_probes += plan.probed == 0 ? 1 : 0;
    if (plan.lengths[0] > 0 && plan.probed < 0) first_kept = step;
    sequence.observe(plan.lengths[0], false);
    engine.observe(plan.lengths[0], false);
  }
  EXPECT_GT(num_probes, 2);
  EXPECT_GE(first_kept, 0);
}

// Trials that pay follow one another; one that does not is paid for first.
TEST(DraftLength, ATrialIsPaidForByWhatItBringsOrLater) {
  const StepCosts costs{.bytes_per_second = 1e15,
                        .fixed_seconds = 1e-3,
                        .row_seconds = 2e-4,
                        .draft_fixed_seconds = 4e-3};
  std::vector<DraftForecast> requests = requests_of(std::vector<double>(4, 0.3));
  for (DraftForecast& request : requests) request.hoped = geometric(1.0);
  DraftLengthChooser chooser(costs, {});
  DraftPlan plan;
  for (int i = 0; i < 3; ++i) {
    chooser.choose(requests, {}, plan.exploration_seconds, plan);
    EXPECT_TRUE(plan.is_trial);
    EXPECT_EQ(plan.lengths, std::vector<std::int32_t>(4, 7));
    EXPECT_LT(plan.exploration_seconds, 0);
    EXPECT_EQ(plan.gain_seconds, 0);
    plan.settle_probe(28);
  }
  const double saved = plan.exploration_seconds;
  chooser.choose(requests, {}, saved, plan);
  const double risk = plan.seconds - plan.plain_seconds;
  EXPECT_LT(risk, 7 * plan.plain_seconds);
  int num_plain = 0;
  for (; num_plain < 5000; ++num_plain) {
    chooser.choose(requests, {}, plan.exploration_seconds, plan);
    if (plan.is_to_learn()) break;
  }
  EXPECT_TRUE(plan.is_trial);
  EXPECT_NEAR(num_plain * 0.007 * plan.plain_seconds, risk - saved, 0.02 * plan.plain_seconds);
  for (DraftForecast& request : requests) request.hoped = geometric(0.8);
  chooser.choose(requests, {}, 1.0, plan);
  EXPECT_FALSE(plan.is_trial);
  EXPECT_GE(plan.probed, 0);
}

// A long prompt in the step makes its rate so low that any draft would raise it.
TEST(DraftLength, DraftsAreNoCheaperBesideAPrompt) {
  const StepCosts costs{.bytes_per_second = 1e15,
                        .fixed_seconds = 1e-3,
                        .row_seconds = 2e-4,
                        .draft_fixed_seconds = 1e-3};
  const DraftLengthOptions options{.exploration = 0};
  EXPECT_EQ(choose(requests_of({0.5}), options, costs).lengths[0], 0);
  const DraftPlan plan = choose(requests_of({0.5}), options, costs, 1000);
  EXPECT_EQ(plan.lengths[0], 0);
  EXPECT_NEAR(plan.prompt_seconds, 0.2, 1e-9);
  EXPECT_NEAR(plan.seconds_per_token, plan.decode_seconds, 1e-12);
}

// Nor is trying paid for with their time.
TEST(DraftLength, PromptsSaveUpNothingForTries) {
  DraftLengthChooser chooser(memory_bound(), {.exploration = 0.01});
  DraftPlan plan;
  chooser.choose({}, {.num_prompt_rows = 2000}, 1e-4, plan);
  EXPECT_EQ(plan.exploration_seconds, 1e-4);
  chooser.choose({}, {.num_prompt_rows = 2000, .num_sequences = 4}, 1e-4, plan);
  EXPECT_NEAR(plan.exploration_seconds, 1e-4 + 0.01 * plan.decode_seconds, 1e-12);
  EXPECT_LT(plan.decode_seconds, plan.plain_seconds / 2);
}

// Where the rows of the plan end at a bend of the clock, the next one is no measure of theirs.
TEST(DraftLength, ARowIsWorthWhatItCostsNotWhatTheNextOneWould) {
  StepCosts costs{.bytes_per_second = 1e15, .draft_fixed_seconds = 1e-4};
  costs.step_times = {{1, 1e-3}};
  costs.verify_times = {{2, 1e-3}, {8, 1.6e-3}, {9, 9e-3}};
  const DraftPlan plan = choose(requests_of({0.95}), {.exploration = 0}, costs);
  EXPECT_EQ(plan.lengths[0], 7);
  EXPECT_NEAR(plan.min_survival, 1e-4 * rate_of(plan), 1e-9);
}

TEST(DraftLength, EveryChosenDraftPaysForItsRow) {
  const DraftPlan plan = choose(requests_of({0.8}), {.hysteresis = 0, .exploration = 0});
  const auto last = static_cast<std::size_t>(plan.lengths[0]);
  EXPECT_GT(plan.min_survival, 0);
  EXPECT_GT(geometric(0.8)[last - 1], plan.min_survival);
}

// What is cut for want of confidence counts as what was expected of it: else the slots that are
// tested, which are the promising ones, would speak for all.
TEST(DraftLength, ACutSlotCountsAsWhatWasExpectedOfIt) {
  AcceptanceHistory history(1.0);
  for (int i = 0; i < 100; ++i)
    history.observe(i % 10 == 0 ? 1 : 0, false, i % 10 == 0 ? 0.5 : 0.1);
  EXPECT_NEAR(history.rate(0, 0.7, 1e-9), 0.1 + 0.9 * 0.1, 1e-6);
  EXPECT_NEAR(history.rate(1, 0.7, 1e-9), 0.5, 1e-6);
  AcceptanceHistory refused(1.0);
  refused.observe(0, true, 0.9);  // tested after all
  EXPECT_NEAR(refused.rate(0, 0.7, 1e-9), 0.0, 1e-6);
}

TEST(DraftLength, OptionsOutsideTheirRangesAreRefused) {
  EXPECT_THROW(DraftLengthChooser(memory_bound(), {.max_length = 17}), Error);
  EXPECT_THROW(DraftLengthChooser(memory_bound(), {.first_rate = 1.5}), Error);
  EXPECT_THROW(DraftLengthChooser(memory_bound(), {.hysteresis = -0.1}), Error);
  EXPECT_THROW(DraftLengthChooser(memory_bound(), {.probe_length = 0}), Error);
}

}  // namespace
}  // namespace winnow
