// What one request's sampling parameters say, prepared once: sets sorted, biases clamped, the
// tokens that can end the run. Shared by all its choices and never changed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling_params.h"

namespace winnow {

struct SampleRules {
  /// `params` has passed validate() and outlives the rules. `model_stop_ids` are eos and its kin;
  /// `default_seed` serves a request that names none.
  SampleRules(const SamplingParams& params, std::span<const TokenId> model_stop_ids,
              std::uint64_t default_seed);

  /// Temperatures below 1e-5 are greedy, as vLLM has it.
  bool is_greedy() const { return params->temperature < 1e-5F; }
  bool ends_run(TokenId token) const;
  bool is_request_stop_id(TokenId token) const;
  /// Whether any processor besides penalties and grammar may change logits at this point.
  bool has_masks(std::int32_t num_output) const;

  const SamplingParams* params;
  std::uint64_t seed;
  std::vector<TokenId> end_ids;           // sorted; what min_tokens holds back
  std::vector<TokenId> allowed_ids;       // sorted, unique
  std::vector<TokenId> banned_ids;        // bad words of one token; sorted, unique
  std::vector<TokenId> early_banned_ids;  // and end_ids: before min_tokens
  bool needs_rows = false;                // more than the choice of a token, or not by bans alone
};

/// In this order: allowed ids, bad words, ids that would end the run before min_tokens, bias.
/// Masked logits become -inf. `context` is prompt and output, whose last `num_output` tokens were
/// generated; a bad word may have begun in the prompt.
void apply_masks(const SampleRules& rules, std::span<const TokenId> context,
                 std::int32_t num_output, std::span<float> logits);

/// Masks every token whose bit is 0, as TokenFilter::fill_mask writes them.
void apply_filter_mask(std::span<const std::uint32_t> mask, std::span<float> logits);

}  // namespace winnow
