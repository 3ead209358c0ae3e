#include "engine/testing/toy_speculation.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/assert.h"
#include "base/random.h"

namespace winnow::testing {

void ToyModel::fill(std::span<const TokenId> context, std::span<float> logits) const {
  const std::size_t size = context.size();
  const auto last = static_cast<std::uint32_t>(context[size - 1]);
  const auto before = static_cast<std::uint32_t>(size > 1 ? context[size - 2] : -1);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i % 4 == 0) {
      const Philox4 drawn = philox4x32(seed, {static_cast<std::uint32_t>(i), last, before, 0});
      for (std::size_t j = i; j < std::min(i + 4, logits.size()); ++j) {
        logits[j] = spread * (static_cast<float>(drawn[j - i] >> 8) * 0x1p-24F - 0.5F);
      }
    }
  }
  if (corrupt_one_in == 0) return;
  const Philox4 drawn = philox4x32(seed, {0, last, before, 1});
  if (drawn[0] % corrupt_one_in == 0) logits[0] = std::numeric_limits<float>::quiet_NaN();
}

bool ToyFilter::has_started() const {
  return start_after_ < 0 || std::ranges::find(accepted_, start_after_) != accepted_.end();
}

bool ToyFilter::may_follow(TokenId token) const {
  if (!has_started()) return true;
  const TokenId last = accepted_.empty() ? 0 : accepted_.back();
  return (2 * static_cast<std::uint32_t>(last) + static_cast<std::uint32_t>(token) + seed_) % 3 !=
         0;
}

bool ToyFilter::fill_mask(std::span<std::uint32_t> mask) {
  if (!has_started()) return false;
  std::ranges::fill(mask, 0U);
  for (std::size_t t = 0; t < vocab_size_; ++t) {
    if (may_follow(static_cast<TokenId>(t))) mask[t / 32] |= 1U << (t % 32);
  }
  return true;
}

void ToyFilter::accept(TokenId token) {
  WINNOW_ASSERT(may_follow(token), "tokens outside the mask never reach a filter", token);
  accepted_.push_back(token);
}

void ToyFilter::rollback(std::int32_t num_tokens) {
  const auto count = static_cast<std::size_t>(num_tokens);
  WINNOW_ASSERT(count <= accepted_.size(), "only accepted tokens are taken back", count);
  accepted_.resize(accepted_.size() - count);
}

std::unique_ptr<TokenFilter> ToyFilter::clone() const { return std::make_unique<ToyFilter>(*this); }

ToyRun::ToyRun(const ToyModel& target, const ToyDrafter& drafter, const SampleRules& rules,
               std::span<const TokenId> prompt, std::unique_ptr<TokenFilter> filter)
    : target_(target),
      drafter_(drafter),
      rules_(rules),
      state_(rules, 0, prompt, std::move(filter)),
      tokens_(prompt.begin(), prompt.end()),
      num_prompt_(prompt.size()),
      draft_logits_(target.vocab_size),
      target_logits_(target.vocab_size) {}

void ToyRun::plain_step() {
  target_.fill(tokens_, target_logits_);
  Sample sample =
      sample_token(target_logits_, rules_, state_, tokens_, num_output(), scratch_.sample);
  status_ = sample.status;
  if (status_ != SampleStatus::kOk) {
    is_done_ = true;
    return;
  }
  commit({.token = sample.token, .logprobs = std::move(sample.logprobs)});
}

void ToyRun::step(AcceptMethod method, std::int32_t num_drafts) {
  draft(method, num_drafts);
  rows_.resize((drafts_.size() + 1) * target_.vocab_size);
  std::vector<TokenId> context = tokens_;
  for (std::size_t i = 0; i <= drafts_.size(); ++i) {
    if (i > 0) context.push_back(drafts_[i - 1]);
    target_.fill(context, std::span(rows_).subspan(i * target_.vocab_size, target_.vocab_size));
  }
  const bool is_one_hot = drafter_.kind == DraftKind::kOneHot;
  verify(method,
         {.logits = rows_,
          .drafts = drafts_,
          .distributions = is_one_hot ? std::span<const DraftDistribution>() : distributions_,
          .rules = &rules_,
          .num_output = num_output()},
         state_, tokens_, scratch_, verified_);
  for (const SampledToken& token : verified_.tokens) {
    WINNOW_ASSERT(!is_done_, "nothing follows the end of a run", token.token);
    commit(token);
  }
  status_ = verified_.status;
  if (status_ != SampleStatus::kOk) is_done_ = true;
}

void ToyRun::draft(AcceptMethod method, std::int32_t num_drafts) {
  const auto count = static_cast<std::size_t>(num_drafts);
  drafts_.clear();
  weights_.resize(std::max(weights_.size(), count));
  distributions_.clear();
  std::vector<TokenId> context = tokens_;
  std::unique_ptr<TokenFilter> filter;
  if (drafter_.fault == Fault::kGrammarCut && state_.filter) filter = state_.filter->clone();
  for (std::size_t slot = 0; slot < count; ++slot) {
    // As odd as the last two tokens, which decide the drafter's logits, may make it.
    if (drafter_.has_confidence && (context.back() + 2 * context[context.size() - 2]) % 3 == 0) {
      return;
    }
    if (!draft_slot(method, slot, context)) return;
    if (drafter_.fault == Fault::kCutByItsDraft && drafts_.back() % 3 == 0) {
      drafts_.pop_back();
      distributions_.pop_back();
      return;
    }
    if (!filter) continue;
    if (!static_cast<ToyFilter&>(*filter).may_follow(drafts_.back())) {
      drafts_.pop_back();
      distributions_.pop_back();
      return;
    }
    filter->accept(drafts_.back());
  }
}

bool ToyRun::draft_slot(AcceptMethod method, std::size_t slot, std::vector<TokenId>& context) {
  const std::size_t size = target_.vocab_size;
  drafter_.model.fill(context, draft_logits_);
  target_.fill(context, target_logits_);
  for (std::size_t i = 0; i < size; ++i) {
    if (target_logits_[i] != target_logits_[i]) target_logits_[i] = 0.0F;
    draft_logits_[i] += drafter_.agreement * (target_logits_[i] - draft_logits_[i]);
  }
  std::vector<TokenId> order(size);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](TokenId a, TokenId b) {
    return draft_logits_[static_cast<std::size_t>(a)] > draft_logits_[static_cast<std::size_t>(b)];
  });
  TokenId token = order[0];
  if (drafter_.kind == DraftKind::kOneHot || rules_.is_greedy()) {
    distributions_.push_back({});
  } else {
    std::vector<TokenId> ids;
    std::vector<float> logits = draft_logits_;
    if (drafter_.kind == DraftKind::kSparse) {
      ids.assign(order.begin(), order.begin() + 3);
      std::ranges::sort(ids);
      logits.clear();
      for (const TokenId id : ids) logits.push_back(draft_logits_[static_cast<std::size_t>(id)]);
    }
    if (drafter_.kind == DraftKind::kPadded) logits.insert(logits.end(), 2, draft_logits_[0]);
    DraftWeights& weights = weights_[slot];
    if (!fill_draft_weights(logits, ids, rules_, weights)) return false;
    distributions_.push_back(weights.view());
    const DraftDistribution& q = distributions_.back();
    DrawKey key{.seed = rules_.seed,
                .choice = state_.choice,
                .position = static_cast<std::uint32_t>(tokens_.size() - 1),
                .slot = static_cast<std::uint32_t>(slot)};
    switch (drafter_.fault) {
      case Fault::kSharedWithResidual:
        token = draw_weights(q.weights, key, DrawStream::kResidual);
        break;
      case Fault::kSharedWithTest:
        token = draw_weights(q.weights, key, DrawStream::kAcceptTest);
        break;
      case Fault::kKeyedByPosition:
        key.position += key.slot;
        key.slot = 0;
        token = draw_weights(q.weights, key, DrawStream::kProposal);
        break;
      default:
        token = propose_token(q, key, method);
    }
  }
  drafts_.push_back(token);
  context.push_back(std::min(token, static_cast<TokenId>(size) - 1));
  const Philox4 drawn = philox4x32(rules_.seed, {static_cast<std::uint32_t>(tokens_.size()),
                                                 static_cast<std::uint32_t>(slot), 7, 7});
  if (drafter_.kind == DraftKind::kHostile && drawn[0] % 4 == 0) {
    drafts_.back() = drawn[1] % 2 == 0 ? -1 : static_cast<TokenId>(size);
  }
  if (drafter_.kind == DraftKind::kPadded && drawn[2] % 8 == 0) distributions_.back().total = 0;
  return true;
}

void ToyRun::commit(const SampledToken& token) {
  tokens_.push_back(token.token);
  state_.accept(token.token);
  sampled_.push_back(token);
  is_done_ = rules_.ends_run(token.token) || num_output() >= rules_.params->max_tokens;
}

}  // namespace winnow::testing
