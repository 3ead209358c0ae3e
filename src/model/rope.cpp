#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"

namespace winnow {
namespace {

/// Rows are made in steps of this many, so that decoding does not come back for each token.
constexpr std::int64_t kStep = 1024;

}  // namespace

RopeCache::RopeCache(double theta, std::int32_t rotary_dim, std::int64_t max_positions,
                     std::shared_ptr<ops::Memory> memory)
    : max_positions_(max_positions), memory_(std::move(memory)) {
  for (std::int32_t j = 0; j < rotary_dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(rotary_dim);
    inverse_frequencies_.push_back(1.0F / std::pow(static_cast<float>(theta), exponent));
  }
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  cos_ = ops::Array<float>(memory_, max_positions * half, "the RoPE table");
  sin_ = ops::Array<float>(memory_, max_positions * half, "the RoPE table");
}

void RopeCache::extend_to(std::int64_t num_positions) {
  if (num_positions <= num_ready_) return;
  WINNOW_ASSERT(num_positions <= max_positions_, "position within the RoPE table", num_positions,
                max_positions_);
  const std::int64_t end = std::min(max_positions_, (num_positions + kStep - 1) / kStep * kStep);
  const auto half = static_cast<std::int64_t>(inverse_frequencies_.size());
  std::vector<float> cos;
  std::vector<float> sin;
  cos.reserve(static_cast<std::size_t>((end - num_ready_) * half));
  sin.reserve(cos.capacity());
  for (std::int64_t p = num_ready_; p < end; ++p) {
    for (const float inverse_frequency : inverse_frequencies_) {
      const float angle = static_cast<float>(p) * inverse_frequency;
      cos.push_back(static_cast<float>(std::cos(double{angle})));
      sin.push_back(static_cast<float>(std::sin(double{angle})));
    }
  }
  const auto num_bytes = static_cast<std::int64_t>(cos.size() * sizeof(float));
  memory_->upload(cos_.data() + num_ready_ * half, cos.data(), num_bytes);
  memory_->upload(sin_.data() + num_ready_ * half, sin.data(), num_bytes);
  num_ready_ = end;
}

}  // namespace winnow
