#include "engine/speculate/draft_walk.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"
#include "engine/sample/device_draw.h"

namespace winnow {
namespace {

// What rounding may leave of a residual that is empty, relative to the mass it was taken from.
constexpr double kEmptyResidual = 1e-12;

std::int32_t usable_drafts(const VerifyInput& input) {
  const std::int32_t left = input.rules->params->max_tokens - input.num_output;
  const auto most = std::min(static_cast<std::int32_t>(input.drafts.size()), std::max(left, 0));
  if (input.distributions.empty()) return most;
  std::int32_t usable = 0;
  while (usable < most && input.distributions[static_cast<std::size_t>(usable)].is_usable()) {
    ++usable;
  }
  return usable;
}

}  // namespace

DraftWalk::DraftWalk(const VerifyInput& input, SampleState& state, std::vector<TokenId>& context,
                     VerifyScratch& scratch)
    : input_(input),
      state_(state),
      context_(context),
      scratch_(scratch),
      anchor_position_(context.size() - 1),
      num_drafts_(usable_drafts(input)) {
  WINNOW_ASSERT(!context.empty(), "a block has an anchor", context.size());
  WINNOW_ASSERT(input.distributions.empty() || input.distributions.size() == input.drafts.size(),
                "one distribution per draft", input.distributions.size(), input.drafts.size());
  context_.reserve(context.size() + input.drafts.size() + 1);
}

DraftDistribution DraftWalk::distribution() const {
  if (input_.distributions.empty()) return {};
  return input_.distributions[static_cast<std::size_t>(length_)];
}

DrawKey DraftWalk::slot_key() const {
  return {.seed = input_.rules->seed,
          .choice = state_.choice,
          .position = static_cast<std::uint32_t>(anchor_position_),
          .slot = static_cast<std::uint32_t>(length_)};
}

void DraftWalk::advance(TokenId token) {
  context_.push_back(token);
  state_.accept(token);
  ++length_;
  is_over_ = input_.rules->ends_run(token) || num_output() >= input_.rules->params->max_tokens;
}

void DraftWalk::rewind(std::int32_t length) {
  if (length == length_) return;
  const auto keep = anchor_position_ + 1 + static_cast<std::size_t>(length);
  state_.take_back(std::span(context_).subspan(keep));
  context_.resize(keep);
  length_ = length;
  is_over_ = false;
}

std::span<const float> DraftWalk::raw_row() const {
  const std::size_t size = input_.vocab_size();
  return input_.logits.subspan(static_cast<std::size_t>(length_) * size, size);
}

Sample DraftWalk::sample() {
  if (!input_.drawn.empty()) return sample_of(input_.drawn[static_cast<std::size_t>(length_)]);
  return sample_token(raw_row(), *input_.rules, state_, context_, num_output(), scratch_.sample);
}

SampleStatus DraftWalk::fill_target() {
  const ProcessedRow row =
      process_row(raw_row(), *input_.rules, state_, context_, num_output(), scratch_.sample);
  if (row.status != SampleStatus::kOk) return row.status;
  processed_ = row.logits;
  scratch_.target.resize(input_.vocab_size());
  target_total_ = fill_token_weights(row, make_draw(*input_.rules, state_.choice, context_),
                                     scratch_.sample, scratch_.target);
  return SampleStatus::kOk;
}

double DraftWalk::target_probability(TokenId token) const {
  if (token < 0 || static_cast<std::size_t>(token) >= scratch_.target.size()) return 0.0;
  return static_cast<double>(scratch_.target[static_cast<std::size_t>(token)]) / target_total_;
}

bool DraftWalk::may_follow(TokenId token) const {
  return token >= 0 && static_cast<std::size_t>(token) < processed_.size() &&
         processed_[static_cast<std::size_t>(token)] > -std::numeric_limits<float>::infinity();
}

double DraftWalk::excess(double mass) const {
  // Σ max(mass p - q, 0) = mass - Σ min(mass p, q): only q's own tokens are visited.
  const DraftDistribution q = distribution();
  if (q.is_one_hot())
    return std::max(mass - std::min(mass * target_probability(draft()), 1.0), 0.0);
  const double scale = mass / target_total_;
  double common = 0;
  for (std::size_t j = 0; j < q.weights.size(); ++j) {
    const std::size_t token = q.ids.empty() ? j : static_cast<std::size_t>(q.ids[j]);
    if (token >= scratch_.target.size()) continue;
    common += std::min(scale * static_cast<double>(scratch_.target[token]),
                       static_cast<double>(q.weights[j]) / q.total);
  }
  return std::max(mass - common, 0.0);
}

TokenId DraftWalk::draw_residual(double mass) {
  // In p's weights: target - q target_total / mass, none above 1.
  const DraftDistribution q = distribution();
  std::vector<float>& residual = scratch_.residual;
  residual.assign(scratch_.target.begin(), scratch_.target.end());
  const double scale = target_total_ / mass;
  const auto take = [&](std::size_t token, double probability) {
    if (token >= residual.size() || !(probability > 0)) return;
    const double left = static_cast<double>(residual[token]) - probability * scale;
    residual[token] = left > 0 ? static_cast<float>(left) : 0.0F;
  };
  if (q.is_one_hot()) {
    if (draft() >= 0) take(static_cast<std::size_t>(draft()), 1.0);
  } else {
    for (std::size_t j = 0; j < q.weights.size(); ++j) {
      take(q.ids.empty() ? j : static_cast<std::size_t>(q.ids[j]),
           static_cast<double>(q.weights[j]) / q.total);
    }
  }
  double left = 0;
  for (const float weight : residual) left += static_cast<double>(weight);
  if (left <= kEmptyResidual * target_total_) return draw_target();
  return draw_weights(residual, slot_key(), DrawStream::kResidual);
}

TokenId DraftWalk::draw_target() {
  return draw_weights(scratch_.target, slot_key(), DrawStream::kResidual);
}

void DraftWalk::report(std::span<SampledToken> tokens) {
  const SamplingParams& params = *input_.rules->params;
  if (!params.logprobs && params.logprob_token_ids.empty()) return;
  rewind(0);
  for (SampledToken& sampled : tokens) {
    if (&sampled != tokens.data()) advance((&sampled - 1)->token);
    const ProcessedRow row =
        process_row(raw_row(), *input_.rules, state_, context_, num_output(), scratch_.sample);
    sampled.logprobs = report_logprobs(raw_row(), row, *input_.rules,
                                       make_draw(*input_.rules, state_.choice, context_),
                                       sampled.token, scratch_.sample);
  }
}

}  // namespace winnow
