// The sampler's state moved along drafted tokens and put back: what the verification methods share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculate/verify.h"

namespace winnow {

class DraftWalk {
 public:
  /// All arguments outlive the walk, which leaves `state` and `context` as they were.
  DraftWalk(const VerifyInput& input, SampleState& state, std::vector<TokenId>& context,
            VerifyScratch& scratch);
  ~DraftWalk() { rewind(0); }
  DraftWalk(const DraftWalk&) = delete;
  DraftWalk& operator=(const DraftWalk&) = delete;

  /// Tokens walked; also the row that follows them.
  std::int32_t length() const { return length_; }
  /// Drafts that may be tested: up to max_tokens and to the first unusable distribution, which was
  /// known before its token was drawn.
  std::int32_t num_drafts() const { return num_drafts_; }
  bool is_at_end_of_drafts() const { return length_ == num_drafts_; }
  /// The last token walked ended the run.
  bool is_over() const { return is_over_; }

  TokenId draft() const { return input_.drafts[static_cast<std::size_t>(length_)]; }
  DraftDistribution distribution() const;
  /// Of this row: numbers of the tests and draws of this slot alone.
  DrawKey slot_key() const;

  void advance(TokenId token);
  void rewind(std::int32_t length);

  std::span<const float> raw_row() const;
  /// What sample_token() takes from this row.
  Sample sample();
  /// Processes this row; scratch.target gets p's weights when the status is kOk.
  SampleStatus fill_target();
  /// p(token) and q(token) of this row, after fill_target(). 0 outside the vocabulary.
  double target_probability(TokenId token) const;
  /// After fill_target(): the token is of the vocabulary and neither masked nor impossible.
  bool may_follow(TokenId token) const;
  /// Σ max(mass p - q, 0) over this row.
  double excess(double mass) const;
  /// A token with probability proportional to max(mass p - q, 0); from p where rounding left
  /// nothing of that.
  TokenId draw_residual(double mass);
  TokenId draw_target();

  /// Adds the log-probabilities that the request asks for, row by row from the first.
  void report(std::span<SampledToken> tokens);

 private:
  std::int32_t num_output() const { return input_.num_output + length_; }

  const VerifyInput& input_;
  SampleState& state_;
  std::vector<TokenId>& context_;
  VerifyScratch& scratch_;
  std::size_t anchor_position_;
  std::int32_t num_drafts_ = 0;
  std::int32_t length_ = 0;
  bool is_over_ = false;
  double target_total_ = 0;
  std::span<const float> processed_;  // this row's logits, after fill_target()
};

}  // namespace winnow
