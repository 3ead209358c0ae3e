#include "ops/cost_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace winnow::cpu {
namespace {

TEST(RunByCost, RunsEveryUnitOnceOnContiguousShares) {
  for (const int num_threads : {1, 2, 3, 7}) {
    ThreadPool pool(num_threads);
    for (const std::int64_t num_units : {0, 1, 2, 5, 64}) {
      for (const bool in_caller : {false, true}) {
        std::vector<int> thread_of(static_cast<std::size_t>(num_units), -1);
        run_by_cost(
            pool, num_units, in_caller, [](std::int64_t i) { return 1 + i * i; },
            [&](std::int64_t i, int thread) {
              int& slot = thread_of[static_cast<std::size_t>(i)];
              EXPECT_EQ(slot, -1) << "unit " << i << " ran twice";
              slot = thread;
            });
        EXPECT_TRUE(std::ranges::is_sorted(thread_of));
        for (const int thread : thread_of) EXPECT_GE(thread, 0);
        if (in_caller && num_units > 0) {
          EXPECT_EQ(thread_of.back(), 0);
        }
      }
    }
  }
}

TEST(RunByCost, BalancesUnequalUnits) {
  ThreadPool pool(2);
  // Ascending costs as of a causal prefill: the halves of the count would be 1 to 3.
  constexpr std::int64_t kUnits = 100;
  std::vector<std::int64_t> cost(2, 0);
  run_by_cost(
      pool, kUnits, false, [](std::int64_t i) { return i + 1; },
      [&](std::int64_t i, int thread) { cost[static_cast<std::size_t>(thread)] += i + 1; });
  EXPECT_NEAR(static_cast<double>(cost[0]), static_cast<double>(cost[1]), kUnits);
}

}  // namespace
}  // namespace winnow::cpu
