#include "ops/op_context.h"

#include <algorithm>

namespace winnow::ops {
namespace {

constexpr std::int64_t kAlignment = 64;
// A buffer that is made anew begins without memory: not for every step that is a little larger.
constexpr std::int64_t kGrowth = std::int64_t{4} << 20;

}  // namespace

std::byte* Scratch::take(std::int64_t num_bytes) {
  const std::int64_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  taken_ += rounded;
  peak_ = std::max(peak_, taken_);
  if (used_ + rounded <= buffer_.size()) {
    std::byte* const taken = buffer_.data() + used_;
    used_ += rounded;
    return taken;
  }
  overflow_.emplace_back(rounded, "scratch of an operation");
  return overflow_.back().data();
}

void Scratch::rewind(const Mark& mark) {
  used_ = mark.used;
  taken_ = mark.taken;
  overflow_.erase(overflow_.begin() + static_cast<std::ptrdiff_t>(mark.num_overflows),
                  overflow_.end());
}

void Scratch::reset() {
  overflow_.clear();
  if (peak_ > buffer_.size()) {
    buffer_ = Buffer();
    buffer_ = Buffer((peak_ + kGrowth - 1) / kGrowth * kGrowth, "scratch of operations");
  }
  used_ = 0;
  taken_ = 0;
  peak_ = 0;
}

}  // namespace winnow::ops
