// Requests of every kind, and a way to run them on an engine core under given conditions: the same
// list for the fake runner and for real decoders.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine_core.h"
#include "engine/testing/collector.h"

namespace winnow::testing {

struct Workload {
  std::vector<GenerationRequest> requests;  // every seed is explicit
};

/// `num_requests` requests with prompts of 1 … `max_prompt` tokens of [0, vocab_size - 4), some of
/// which share beginnings, and all sampling parameters mixed.
Workload mixed_workload(std::uint64_t seed, std::int32_t num_requests, std::int32_t max_prompt,
                        std::int32_t max_tokens, std::int32_t vocab_size);

using Results = std::vector<std::shared_ptr<Collected>>;

/// Each request by itself on `core_of()`: a new core and a new runner every time.
Results run_alone(const Workload& workload, const std::function<EngineCore&()>& core_of);

struct RunOptions {
  std::int32_t steps_between = 0;  // steps from one arrival to the next; 0: all at once
  /// Called before each step; may submit, abort, …
  std::function<void(std::int64_t step)> before_step{};
};
/// All of them on one core, until it is idle; checks its integrity.
Results run_together(const Workload& workload, EngineCore& core, const RunOptions& options = {});

/// EXPECTs that every result of `actual` obeys the rules and equals `expected` bit for bit.
void expect_equal(const Results& expected, const Results& actual, const std::string& what);

}  // namespace winnow::testing
