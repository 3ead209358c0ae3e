// What steps and drafts take: as measured, between what was measured, and as it turns out.
#include "engine/speculate/step_cost.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/speculate/measure_costs.h"
#include "engine/speculate/step_correction.h"
#include "engine/testing/fake_runner.h"

namespace winnow {
namespace {

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
      testing::FakeRunner runner({.num_blocks = num_blocks, .max_drafts = 7});
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
