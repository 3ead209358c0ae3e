#include "model/kept_blocks.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/log.h"

namespace winnow {

bool KeptBlocks::begin(const KeptBlocksStep& step) {
  selections_.clear();
  step_ = step;
  if (step.rows.empty() || num_layers_ == 0) return false;
  num_places_ = step.is_recorded ? step.num_tokens : std::ssize(step.rows);
  const std::int64_t needed = num_layers_ * num_places_ * width_;
  if (needed <= buffer_.size()) return true;
  try {
    buffer_ = {};
    ++generation_;
    buffer_ = {memory_,
               static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(needed))),
               "kept blocks of a step"};
    return true;
  } catch (const Error& error) {
    if (!has_warned_) spdlog::warn("kept blocks are left out of answers: {}", error.text());
    has_warned_ = true;
    return false;
  }
}

/// Of a row of logits among the tokens that a layer works on.
std::int32_t KeptBlocks::place_of(std::int32_t row, bool is_last) const {
  return (is_last ? step_.last_rows : step_.tokens)[static_cast<std::size_t>(row)];
}

void KeptBlocks::keep(std::int64_t index, const std::int32_t* blocks, std::int64_t num_tokens,
                      bool is_last) {
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(std::int32_t));
  std::int32_t* const to = buffer_.data() + index * num_places_ * width_;
  if (step_.is_recorded) {
    memory_->copy(to, blocks, num_tokens * width_ * kSize);
    return;
  }
  for (std::int64_t i = 0; i < num_places_; ++i) {
    const std::int32_t place = place_of(step_.rows[static_cast<std::size_t>(i)], is_last);
    memory_->copy(to + i * width_, blocks + place * width_, width_ * kSize);
  }
}

void KeptBlocks::end(bool last_is_sparse) {
  const std::int64_t count = num_layers_ * num_places_ * width_;
  const std::int32_t* kept = buffer_.data();
  if (!memory_->is_host()) {
    host_.resize(static_cast<std::size_t>(count));
    memory_->download(host_.data(), kept, count * static_cast<std::int64_t>(sizeof(std::int32_t)));
    kept = host_.data();
  }
  selections_.reserve(step_.rows.size() * static_cast<std::size_t>(num_layers_ * width_));
  for (std::size_t i = 0; i < step_.rows.size(); ++i) {
    for (std::int64_t layer = 0; layer < num_layers_; ++layer) {
      const bool is_last = last_is_sparse && layer == num_layers_ - 1;
      const std::int64_t place =
          step_.is_recorded ? place_of(step_.rows[i], is_last) : static_cast<std::int64_t>(i);
      const std::int32_t* const from = kept + (layer * num_places_ + place) * width_;
      selections_.insert(selections_.end(), from, from + width_);
    }
  }
}

}  // namespace winnow
