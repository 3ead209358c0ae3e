#include "engine/sample/masks_ahead.h"

#include <algorithm>

namespace winnow {

void MasksAhead::fill(TokenFilter& filter, std::span<const TokenId> drafts,
                      const SampleRules& rules, std::size_t vocab_size,
                      const std::atomic<bool>& is_stopped) {
  num_words_ = (vocab_size + 31) / 32;
  words_.resize((drafts.size() + 1) * num_words_);
  is_free_.resize(drafts.size() + 1);
  path_.assign(drafts.begin(), drafts.end());
  num_filled_ = 0;
  length_ = 0;
  first_off_ = kNowhere;
  std::int32_t num_tried = 0;
  while (!is_stopped.load(std::memory_order_relaxed)) {
    const std::size_t at = num_filled_++;
    is_free_[at] = filter.fill_mask(std::span(words_).subspan(at * num_words_, num_words_)) ? 0 : 1;
    if (at == drafts.size() || rules.ends_run(drafts[at]) ||
        !may_follow(at, drafts[at], vocab_size)) {
      break;
    }
    filter.accept(drafts[at]);
    ++num_tried;
  }
  if (num_tried > 0) filter.rollback(num_tried);
}

bool MasksAhead::may_follow(std::size_t at, TokenId token, std::size_t vocab_size) const {
  const auto id = static_cast<std::size_t>(token);
  if (token < 0 || id >= vocab_size) return false;
  return is_free_[at] != 0 || (mask_at(at)[id / 32] >> (id % 32) & 1U) != 0;
}

void MasksAhead::advance(TokenId token) {
  ++length_;
  if (first_off_ != kNowhere) return;
  if (length_ > path_.size() || path_[length_ - 1] != token) first_off_ = length_;
}

void MasksAhead::rewind(std::size_t num_tokens) {
  if (num_tokens > length_) num_filled_ = 0;  // back before where they were filled
  length_ -= std::min(num_tokens, length_);
  if (length_ < first_off_) first_off_ = kNowhere;
}

std::optional<std::span<const std::uint32_t>> MasksAhead::find() const {
  if (first_off_ != kNowhere || length_ >= num_filled_) return std::nullopt;
  if (is_free_[length_] != 0) return std::span<const std::uint32_t>();
  return mask_at(length_);
}

}  // namespace winnow
