// Units of unequal cost shared out over the pool: thread t runs a contiguous range of about the
// t-th part of the total. Fixed by the costs alone, like ThreadPool's own shares.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace winnow::cpu {

/// Runs run(i, thread) for every i in [0, num_units); cost(i) ≥ 1 is asked by every thread, so it
/// must be cheap. With `in_caller` all units run on the calling thread (small work).
template <typename Cost, typename Run>
void run_by_cost(ThreadPool& pool, std::int64_t num_units, bool in_caller, const Cost& cost,
                 const Run& run) {
  if (num_units == 0) return;
  const int num_shares = in_caller ? 1 : pool.num_threads();
  if (num_shares == 1) {
    for (std::int64_t i = 0; i < num_units; ++i) run(i, 0);
    return;
  }
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < num_units; ++i) total += cost(i);
  pool.parallel_for(num_shares, [&](std::int64_t share, int thread) {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i < num_units; ++i) {
      const std::int64_t unit = cost(i);
      const std::int64_t middle = before + unit / 2;
      before += unit;
      if (middle * num_shares / total == share) run(i, thread);
    }
  });
}

}  // namespace winnow::cpu
