#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace winnow {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceForAnyCountAndSize) {
  for (const int num_threads : {1, 2, 3, 7}) {
    ThreadPool pool(num_threads);
    for (const std::int64_t num_tasks : {0, 1, 2, 3, 6, 7, 8, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(num_tasks));
      pool.parallel_for(num_tasks, [&](std::int64_t i, int thread) {
        EXPECT_LT(thread, num_threads);
        runs[static_cast<std::size_t>(i)].fetch_add(1);
      });
      for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, SurvivesManySmallCallsInARow) {
  ThreadPool pool(3);
  std::atomic<std::int64_t> sum{0};
  for (int call = 0; call < 20000; ++call) {
    pool.parallel_for(5, [&](std::int64_t i, int) { sum.fetch_add(i); });
  }
  EXPECT_EQ(sum.load(), 20000 * 10);
}

}  // namespace
}  // namespace winnow
