// From one row of logits to one token: masks and penalties, temperature, top-k, top-p, min-p, a
// draw, log-probabilities. Source: spec/serving.md 2.2 for meanings and order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/sample/candidates.h"
#include "engine/sample/masks_ahead.h"
#include "engine/sample/penalties.h"
#include "engine/sample/row_kernels.h"
#include "engine/sample/sample_rules.h"
#include "engine/sample/token_filter.h"
#include "model/model_runner.h"

namespace winnow {

/// What one choice's past changes about its next token. Moves with the sequence; a preempted one
/// keeps it.
struct SampleState {
  SampleState() = default;
  SampleState(const SampleRules& rules, std::uint32_t choice, std::span<const TokenId> prompt,
              std::unique_ptr<TokenFilter> filter);

  /// The token became part of the output.
  void accept(TokenId token);
  /// Undoes accept() of these, the last ones.
  void take_back(std::span<const TokenId> tokens);

  std::uint32_t choice = 0;
  Penalties penalties;
  std::unique_ptr<TokenFilter> filter;  // may be null
  MasksAhead masks_ahead;               // of `filter`
  std::int64_t num_late_masks = 0;      // that were not among them when they were needed
};

enum class SampleStatus {
  kOk,
  kCorruptLogits,   // a NaN or +inf, or nothing but -inf: the model's output is broken
  kNothingAllowed,  // masks and grammar leave no token
};

struct Sample {
  SampleStatus status = SampleStatus::kOk;
  TokenId token = 0;
  std::optional<PositionLogprobs> logprobs{};
};

/// Work space of one thread; grows to the vocabulary's size once.
struct SampleScratch {
  std::vector<float> row;
  std::vector<float> weights;
  std::vector<std::uint32_t> mask;
  std::vector<Candidate> candidates;
  std::vector<Candidate> ranking;
};

/// What `rules` say of the token after `context`, without masks and penalties; the row is left
/// open.
ops::Draw make_draw(const SampleRules& rules, std::uint32_t choice,
                    std::span<const TokenId> context);

/// The token that `draw` describes (ops/sample/sample.h), from a masked row with this scan, which
/// found a finite maximum.
TokenId draw_token(std::span<const float> logits, const RowScan& scan, const ops::Draw& draw,
                   SampleScratch& scratch);

/// A row after masks, filter and penalties.
struct ProcessedRow {
  SampleStatus status = SampleStatus::kOk;
  std::span<const float> logits;  // the raw row where nothing applies, else scratch.row
  RowScan scan;
};
ProcessedRow process_row(std::span<const float> raw, const SampleRules& rules, SampleState& state,
                         std::span<const TokenId> context, std::int32_t num_output,
                         SampleScratch& scratch);

/// weights[t] is proportional to the probability that sample_token() takes t: 0 for what is masked
/// or cut off, one-hot when greedy. Returns their sum, at least 1, added in an order that depends
/// on the size alone. The row's status is kOk.
double fill_token_weights(const ProcessedRow& row, const ops::Draw& draw, SampleScratch& scratch,
                          std::span<float> weights);

/// Log-probabilities of `chosen` and of what the request lists besides, if it asks for any, from
/// the raw row or from what is drawn from. Call after all other use of `row`: overwrites it.
std::optional<PositionLogprobs> report_logprobs(std::span<const float> raw, const ProcessedRow& row,
                                                const SampleRules& rules, const ops::Draw& draw,
                                                TokenId chosen, SampleScratch& scratch);

/// The next token after `context` (prompt and output, not empty). A pure function of its
/// arguments: neither other sequences nor the thread matter. Temperature below 1e-5 takes the
/// lowest id of the highest logit.
///
/// top-p counts mass among the top-k tokens only, as vLLM does; min-p keeps tokens of at least
/// min_p times the highest probability; what is left is drawn from as one distribution.
Sample sample_token(std::span<const float> logits, const SampleRules& rules, SampleState& state,
                    std::span<const TokenId> context, std::int32_t num_output,
                    SampleScratch& scratch);

}  // namespace winnow
