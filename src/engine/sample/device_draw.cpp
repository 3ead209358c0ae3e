#include "engine/sample/device_draw.h"

#include <algorithm>

namespace winnow {
namespace {

bool completes_bad_word(const SampleRules& rules, std::span<const TokenId> context) {
  const auto is_about_to_end = [&](const std::vector<TokenId>& word) {
    const std::size_t num_before = word.size() - 1;
    return num_before > 0 && num_before <= context.size() &&
           std::equal(word.begin(), word.end() - 1,
                      context.end() - static_cast<std::ptrdiff_t>(num_before));
  };
  return std::ranges::any_of(rules.params->bad_words, is_about_to_end);
}

}  // namespace

std::optional<PlannedDraw> plan_draw(const SampleRules& rules, std::uint32_t choice,
                                     std::span<const TokenId> context, std::int32_t num_output) {
  if (rules.needs_rows || completes_bad_word(rules, context)) return std::nullopt;
  const bool holds_back_ends = num_output < rules.params->min_tokens;
  const std::vector<TokenId>& banned = holds_back_ends ? rules.early_banned_ids : rules.banned_ids;
  return PlannedDraw{.draw = make_draw(rules, choice, context),
                     .banned_ids = banned.empty() ? nullptr : &banned};
}

Sample sample_of(const ops::Drawn& drawn) {
  switch (drawn.status) {
    case ops::DrawStatus::kCorruptLogits:
      return {.status = SampleStatus::kCorruptLogits};
    case ops::DrawStatus::kNothingAllowed:
      return {.status = SampleStatus::kNothingAllowed};
    case ops::DrawStatus::kOk:
      break;
  }
  return {.token = drawn.token};
}

TokenMasks::TokenMasks(ModelRunner& runner)
    : runner_(runner), slots_(static_cast<std::size_t>(runner.num_token_masks())) {}

std::optional<std::int32_t> TokenMasks::find(const std::vector<TokenId>& ids) {
  const auto use = [&](std::vector<Slot>::iterator slot) {
    slot->last_step = step_;
    return static_cast<std::int32_t>(slot - slots_.begin());
  };
  const auto known = std::ranges::find(slots_, ids, &Slot::ids);
  if (known != slots_.end() && known->last_step >= 0) return use(known);
  const auto oldest = std::ranges::min_element(slots_, {}, &Slot::last_step);
  if (oldest == slots_.end() || oldest->last_step == step_) return std::nullopt;
  words_.assign((static_cast<std::size_t>(runner_.vocab_size()) + 31) / 32, 0);
  for (const TokenId id : ids) words_[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
  oldest->last_step = -1;  // should the upload throw
  runner_.set_token_mask(static_cast<std::int32_t>(oldest - slots_.begin()), words_);
  oldest->ids = ids;
  return use(oldest);
}

}  // namespace winnow
