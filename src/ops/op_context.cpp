#include "ops/op_context.h"

namespace winnow::ops {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

std::byte* Scratch::take(std::int64_t num_bytes) {
  const std::int64_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  wanted_ += rounded;
  if (used_ + rounded <= buffer_.size()) {
    std::byte* const taken = buffer_.data() + used_;
    used_ += rounded;
    return taken;
  }
  overflow_.emplace_back(rounded, "scratch of an operation");
  return overflow_.back().data();
}

void Scratch::reset() {
  if (!overflow_.empty()) {
    overflow_.clear();
    buffer_ = Buffer();
    buffer_ = Buffer(wanted_, "scratch of operations");
  }
  used_ = 0;
  wanted_ = 0;
}

}  // namespace winnow::ops
