// StepCosts as this machine has them: steps and drafts of growing size, timed on an idle runner.
#pragma once

#include <cstdint>

#include "engine/speculate/step_cost.h"

namespace winnow {

class ModelRunner;

struct MeasureLimits {
  std::int32_t num_drafts = 0;     // of a block, as drafts are going to be
  std::int32_t max_tokens = 0;     // of a step
  std::int32_t max_sequences = 0;  // of a step
  std::int32_t max_model_len = 0;
  double seconds = 2.0;  // no new size is begun after that; the smallest are always measured
};

/// On the runner's thread, while nothing of its pool is in use: leaves values of no request there.
/// The runner has a drafter. Throws what it throws.
StepCosts measure_step_costs(ModelRunner& runner, const MeasureLimits& limits);

}  // namespace winnow
