// cos and sin of every position, as the public implementation computes them (spec/model.md 3.5):
// inv_freq[j] = 1 / theta^(2j / rotary_dim) with power and reciprocal in fp32, angle = position ·
// inv_freq[j] rounded to fp32, then accurate cos and sin of that fp32 angle. A double-precision
// angle would be better and wrong: near position 2^20 the fp32 product is off by up to 2^-4 rad,
// and that is what the model was trained with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/memory.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow {

/// Engine thread only. Address space for every position is reserved at once; a row costs memory and
/// time when it is first needed.
class RopeCache {
 public:
  /// The table lies in `memory`.
  RopeCache(double theta, std::int32_t rotary_dim, std::int64_t max_positions,
            std::shared_ptr<ops::Memory> memory = ops::make_host_memory());

  std::int64_t max_positions() const { return max_positions_; }

  /// Makes rows [0, num_positions) valid; num_positions ≤ max_positions (asserted).
  void extend_to(std::int64_t num_positions);

  ops::RopeTable table() const { return {.cos = cos_.data(), .sin = sin_.data()}; }

 private:
  std::vector<float> inverse_frequencies_;  // [rotary_dim / 2]
  std::int64_t max_positions_;
  std::int64_t num_ready_ = 0;
  std::shared_ptr<ops::Memory> memory_;
  ops::Array<float> cos_;
  ops::Array<float> sin_;
};

}  // namespace winnow
