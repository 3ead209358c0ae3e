#include "grammar/compiled_grammar.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "grammar/compiled_grammar_impl.h"

namespace winnow {

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
CompiledGrammar::~CompiledGrammar() = default;

const GrammarVocabulary& CompiledGrammar::vocabulary() const { return *impl_->vocabulary; }

std::int64_t CompiledGrammar::num_bytes() const {
  return static_cast<std::int64_t>(impl_->grammar.MemorySizeBytes());
}

struct GrammarState::Impl {
  xgrammar::GrammarMatcher matcher;
  std::int32_t num_past_end = 0;  // stop tokens after the first: a request may ignore them
  bool is_stuck = false;          // the matcher failed: the text can only end
};

GrammarState::GrammarState(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)),
      impl_(new Impl{.matcher = xgrammar::GrammarMatcher(grammar_->impl().grammar)}) {}

GrammarState::GrammarState(std::shared_ptr<const CompiledGrammar> grammar,
                           std::unique_ptr<Impl> impl)
    : grammar_(std::move(grammar)), impl_(std::move(impl)) {}

GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

void GrammarState::allow_stop_only(std::span<std::uint32_t> mask) const {
  std::ranges::fill(mask, 0U);
  for (const TokenId token : grammar_->vocabulary().stop_ids()) {
    mask[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
  }
}

bool GrammarState::fill_mask(std::span<std::uint32_t> mask) {
  if (!impl_->is_stuck && !impl_->matcher.IsTerminated()) {
    auto shape = static_cast<std::int64_t>(mask.size());
    DLTensor tensor{.data = mask.data(),
                    .device = {.device_type = kDLCPU, .device_id = 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = &shape,
                    .strides = nullptr,
                    .byte_offset = 0};
    try {
      return impl_->matcher.FillNextTokenBitmask(&tensor);
    } catch (const std::exception&) {
      impl_->is_stuck = true;
    }
  }
  allow_stop_only(mask);
  return true;
}

bool GrammarState::accept(TokenId token) {
  if (impl_->is_stuck) return false;
  try {
    if (!impl_->matcher.IsTerminated()) return impl_->matcher.AcceptToken(token);
    if (!std::ranges::binary_search(grammar_->vocabulary().stop_ids(), token)) return false;
    ++impl_->num_past_end;
    return true;
  } catch (const std::exception&) {
    impl_->is_stuck = true;
    return false;
  }
}

bool GrammarState::accept_text(std::string_view text) {
  if (impl_->is_stuck || impl_->matcher.IsTerminated()) return false;
  try {
    return impl_->matcher.AcceptString(std::string(text));
  } catch (const std::exception&) {
    impl_->is_stuck = true;
    return false;
  }
}

void GrammarState::rollback(std::int32_t num_steps) {
  const std::int32_t past_end = std::min(num_steps, impl_->num_past_end);
  impl_->num_past_end -= past_end;
  if (num_steps == past_end || impl_->is_stuck) return;
  try {
    impl_->matcher.Rollback(num_steps - past_end);
  } catch (const std::exception&) {
    impl_->is_stuck = true;
  }
}

GrammarState GrammarState::clone() const {
  return {grammar_, std::make_unique<Impl>(Impl{.matcher = impl_->matcher.Fork(),
                                                .num_past_end = impl_->num_past_end,
                                                .is_stuck = impl_->is_stuck})};
}

}  // namespace winnow
