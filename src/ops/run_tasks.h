// The loop of operations on the CPU over rows, tokens or tiles.
#pragma once

#include <cstdint>

#include "ops/op_context.h"

namespace winnow::ops {

/// task(i, thread) for every i in [0, num_tasks): on the pool's threads where the work is worth
/// waking them, else here, as thread 0.
template <typename Task>
void run_tasks(const OpContext& context, std::int64_t num_tasks, bool is_worth_waking,
               const Task& task) {
  if (is_worth_waking) {
    context.pool->parallel_for(num_tasks, task);
  } else {
    for (std::int64_t i = 0; i < num_tasks; ++i) task(i, 0);
  }
}

}  // namespace winnow::ops
