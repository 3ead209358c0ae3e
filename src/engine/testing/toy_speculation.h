// A target, a drafter and a grammar of a few tokens, and the loop around verify(): for the tests of
// verification, where exact probabilities must be known.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/sample/token_filter.h"
#include "engine/speculate/verify.h"

namespace winnow::testing {

/// Logits that depend on the last two tokens.
struct ToyModel {
  std::uint64_t seed = 0;
  std::size_t vocab_size = 6;
  float spread = 3.0F;
  std::uint32_t corrupt_one_in = 0;  // contexts with a NaN; 0: none

  void fill(std::span<const TokenId> context, std::span<float> logits) const;
};

/// After token t only those tokens u may come for which (a t + b u + seed) % 3 != 0, once
/// `start_after` was seen (-1: from the start). Asserts that it is used as its contract says.
class ToyFilter : public TokenFilter {
 public:
  ToyFilter(std::size_t vocab_size, std::uint32_t seed, TokenId start_after)
      : vocab_size_(vocab_size), seed_(seed), start_after_(start_after) {}

  bool fill_mask(std::span<std::uint32_t> mask) override;
  void accept(TokenId token) override;
  void rollback(std::int32_t num_tokens) override;
  std::unique_ptr<TokenFilter> clone() const override;

  bool may_follow(TokenId token) const;
  std::size_t num_accepted() const { return accepted_.size(); }

 private:
  bool has_started() const;

  std::size_t vocab_size_;
  std::uint32_t seed_;
  TokenId start_after_;
  std::vector<TokenId> accepted_;
};

enum class DraftKind {
  kDense,    // q over the vocabulary
  kSparse,   // q over the drafter's three highest tokens
  kOneHot,   // the drafter's highest token
  kPadded,   // q over more tokens than the vocabulary has; some distributions unusable
  kHostile,  // as kDense, but some ids are replaced by such outside the vocabulary: not lossless
};

/// Faults put in on purpose: tests of distributions must notice each.
enum class Fault {
  kNone,
  kGrammarCut,          // drafts end before the first that the grammar forbids: a fresh draw there
  kSharedWithResidual,  // proposals race with the residual's numbers
  kSharedWithTest,      // proposals race with the test's number
  kCutByItsDraft,       // a block ends before a draft that, once drawn, looks unlikely to stay
  kKeyedByPosition,     // proposals depend on their own position, not on the step's
};

struct ToyDrafter {
  ToyModel model{};
  float agreement = 0.5F;  // share of the target's logits in the drafter's
  DraftKind kind = DraftKind::kDense;
  /// Ends a block before a slot whose context makes it look unlikely to stay: what the engine does
  /// with the drafter's confidence. Lossless, the slot's draft being drawn later.
  bool has_confidence = false;
  Fault fault = Fault::kNone;
};

/// One run, moved forward a verifying step at a time.
class ToyRun {
 public:
  /// Everything outlives the run. `filter` may be null.
  ToyRun(const ToyModel& target, const ToyDrafter& drafter, const SampleRules& rules,
         std::span<const TokenId> prompt, std::unique_ptr<TokenFilter> filter);

  /// Drafts, verifies and commits; the last result is verified().
  void step(AcceptMethod method, std::int32_t num_drafts);
  /// The same without drafts, by sample_token().
  void plain_step();

  bool is_done() const { return is_done_; }
  const Verified& verified() const { return verified_; }
  std::span<const TokenId> drafts() const { return drafts_; }
  std::span<const TokenId> output() const { return std::span(tokens_).subspan(num_prompt_); }
  const std::vector<SampledToken>& sampled() const { return sampled_; }
  SampleStatus status() const { return status_; }
  SampleState& state() { return state_; }

 private:
  void draft(AcceptMethod method, std::int32_t num_drafts);
  bool draft_slot(AcceptMethod method, std::size_t slot, std::vector<TokenId>& context);
  void commit(const SampledToken& token);
  std::int32_t num_output() const { return static_cast<std::int32_t>(output().size()); }

  const ToyModel& target_;
  const ToyDrafter& drafter_;
  const SampleRules& rules_;
  SampleState state_;
  std::vector<TokenId> tokens_;
  std::size_t num_prompt_;
  bool is_done_ = false;
  SampleStatus status_ = SampleStatus::kOk;

  std::vector<TokenId> drafts_;
  std::vector<DraftWeights> weights_;
  std::vector<DraftDistribution> distributions_;
  std::vector<float> rows_;
  std::vector<float> draft_logits_, target_logits_;
  std::vector<SampledToken> sampled_;
  VerifyScratch scratch_;
  Verified verified_;
};

}  // namespace winnow::testing
