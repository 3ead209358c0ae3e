#include "engine/speculate/verify.h"

#include <algorithm>

#include "engine/speculate/draft_walk.h"

namespace winnow {
namespace {

void accept_draft(DraftWalk& walk, Verified& out) {
  const TokenId token = walk.draft();
  out.tokens.push_back({.token = token});
  ++out.num_accepted;
  walk.advance(token);
}

/// A draft without probability could never have been accepted, nor any after it.
void note_rejection(const DraftWalk& walk, Verified& out) {
  out.is_rejected = true;
  if (walk.target_probability(walk.draft()) <= 0) out.num_proposed = walk.length();
}

void verify_standard(DraftWalk& walk, Verified& out) {
  while (!walk.is_over()) {
    out.status = walk.fill_target();
    if (out.status != SampleStatus::kOk) return;
    if (walk.is_at_end_of_drafts()) {
      out.tokens.push_back({.token = walk.draw_target()});
      return;
    }
    const TokenId draft = walk.draft();
    const double p = walk.target_probability(draft);
    const double q = walk.distribution().probability(draft, draft);
    const double u = draw_uniform(walk.slot_key(), DrawStream::kAcceptTest);
    if (q > 0 && p > u * q) {
      accept_draft(walk, out);
      continue;
    }
    note_rejection(walk, out);
    out.tokens.push_back({.token = walk.draw_residual(1.0)});
    return;
  }
}

/// `mass` is P_i of spec 4.5, the probability that at least i drafts are accepted given the first
/// i. A prefix is a leaf where nothing can follow in this step: the drafts or the run end, or the
/// next row cannot be used. Where the leaves lie may depend on the prefix alone, and does.
void verify_block(DraftWalk& walk, Verified& out) {
  double mass = 1.0;
  double accepted_mass = 1.0;
  bool is_leaf_reached = false;
  while (true) {
    double threshold = mass;
    bool is_leaf = walk.is_over() || walk.is_at_end_of_drafts();
    if (!is_leaf) is_leaf = walk.fill_target() != SampleStatus::kOk;
    if (!is_leaf) {
      const double excess = walk.excess(mass);
      const double rest = excess + 1.0 - mass;
      threshold = rest > 0 ? excess / rest : 1.0;
    }
    if (walk.length() > 0) {
      DrawKey key = walk.slot_key();
      --key.slot;  // of the last draft of the prefix
      if (draw_uniform(key, DrawStream::kAcceptTest) <= threshold) {
        out.num_accepted = walk.length();
        accepted_mass = mass;
      }
    }
    is_leaf_reached = is_leaf;
    if (is_leaf) break;
    const TokenId draft = walk.draft();
    const double q = walk.distribution().probability(draft, draft);
    const double p = walk.target_probability(draft);
    mass = q > 0 ? std::min(mass * p / q, 1.0) : 0.0;
    if (!(mass > 0)) {  // no longer prefix can be accepted
      if (p <= 0) out.num_proposed = walk.length();
      break;
    }
    walk.advance(draft);
  }
  const bool is_leaf_accepted = is_leaf_reached && out.num_accepted == walk.length();
  const bool has_ended = is_leaf_accepted && walk.is_over();
  out.is_rejected = !is_leaf_accepted;
  walk.rewind(0);
  while (walk.length() < out.num_accepted) {
    out.tokens.push_back({.token = walk.draft()});
    walk.advance(walk.draft());
  }
  if (has_ended) return;
  out.status = walk.fill_target();
  if (out.status != SampleStatus::kOk) return;
  out.tokens.push_back(
      {.token = is_leaf_accepted ? walk.draw_target() : walk.draw_residual(accepted_mass)});
}

void verify_equal(DraftWalk& walk, Verified& out) {
  while (!walk.is_over()) {
    Sample sample = walk.sample();
    out.status = sample.status;
    if (out.status != SampleStatus::kOk) return;
    out.tokens.push_back({.token = sample.token, .logprobs = std::move(sample.logprobs)});
    if (walk.is_at_end_of_drafts()) return;
    if (sample.token != walk.draft()) {
      out.is_rejected = true;
      return;
    }
    ++out.num_accepted;
    walk.advance(sample.token);
  }
}

}  // namespace

void Verified::keep_first(std::size_t num_tokens) {
  if (num_tokens >= tokens.size()) return;
  tokens.resize(num_tokens);
  const auto kept = static_cast<std::int32_t>(num_tokens);
  if (kept < num_accepted) {
    num_accepted = kept;
    is_rejected = false;  // what was refused lies behind the end
  }
  status = SampleStatus::kOk;
}

bool verifies_by_equality(AcceptMethod method, const SampleRules& rules) {
  return method == AcceptMethod::kCoupled || rules.is_greedy();
}

void verify(AcceptMethod method, const VerifyInput& input, SampleState& state,
            std::vector<TokenId>& context, VerifyScratch& scratch, Verified& out) {
  out.status = SampleStatus::kOk;
  out.num_accepted = 0;
  out.is_rejected = false;
  out.tokens.clear();
  DraftWalk walk(input, state, context, scratch);
  out.num_proposed = walk.num_drafts();
  if (verifies_by_equality(method, *input.rules) || input.drafts.empty()) {
    verify_equal(walk, out);
    return;
  }
  if (method == AcceptMethod::kStandard) {
    verify_standard(walk, out);
  } else {
    verify_block(walk, out);
  }
  walk.report(out.tokens);
}

}  // namespace winnow
