#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace winnow {
namespace {

/// Rows are made in steps of this many, so that decoding does not come back for each token.
constexpr std::int64_t kStep = 1024;

}  // namespace

RopeCache::RopeCache(double theta, std::int32_t rotary_dim, std::int64_t max_positions)
    : max_positions_(max_positions) {
  for (std::int32_t j = 0; j < rotary_dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
    inverse_frequencies_.push_back(1.0F / std::pow(static_cast<float>(theta), exponent));
  }
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  const std::int64_t num_bytes = max_positions * half * static_cast<std::int64_t>(sizeof(float));
  cos_ = Buffer(num_bytes, "the RoPE table");
  sin_ = Buffer(num_bytes, "the RoPE table");
}

void RopeCache::extend_to(std::int64_t num_positions) {
  if (num_positions <= num_ready_) return;
  WINNOW_ASSERT(num_positions <= max_positions_, "position within the RoPE table", num_positions,
                max_positions_);
  const std::int64_t end = std::min(max_positions_, (num_positions + kStep - 1) / kStep * kStep);
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  for (std::int64_t p = num_ready_; p < end; ++p) {
    for (std::int64_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(p) * inverse_frequencies_[static_cast<std::size_t>(j)];
      cos_.as<float>()[p * half + j] = static_cast<float>(std::cos(double{angle}));
      sin_.as<float>()[p * half + j] = static_cast<float>(std::sin(double{angle}));
    }
  }
  num_ready_ = end;
}

}  // namespace winnow
