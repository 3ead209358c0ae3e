// What the engine accepts: options at start, requests at submission.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/engine_core.h"

namespace winnow {
namespace {

constexpr std::int64_t kPromptLogitBytes = std::int64_t{64}
                                           << 20;  // of one step, see max_logit_rows

[[noreturn]] void refuse(const std::string& param, const std::string& message,
                         std::string hint = {}) {
  throw Error(ErrorCode::kInvalidArgument, message, std::move(hint), param);
}

void check_at_least(const std::string& name, std::int64_t value, std::int64_t least) {
  if (value < least)
    refuse(name, fmt::format("{} must be at least {}, got {}", name, least, value));
}

void check_speculation(const SpeculationOptions& speculation) {
  const std::int32_t num_drafts = speculation.num_drafts;
  if (num_drafts > kMaxDraftLength) {
    refuse("num_speculative_tokens",
           fmt::format("num_speculative_tokens = {} is above {}", num_drafts, kMaxDraftLength));
  }
  check_at_least("speculative max_model_len", speculation.max_model_len, 0);
  check_at_least("dspark_draft_topk", speculation.draft_top_k, 0);
  for (const BatchDraftLength& entry : speculation.lengths_by_batch) {
    if (entry.num_tokens < 0 || entry.num_tokens > num_drafts) {
      refuse("num_speculative_tokens_per_batch_size",
             fmt::format("{} drafts for {} to {} sequences, expected at most {}", entry.num_tokens,
                         entry.first, entry.last, num_drafts));
    }
  }
  const std::vector<double>& rates = speculation.synthetic_rates;
  if (!rates.empty() && std::ssize(rates) != num_drafts) {
    refuse("synthetic_acceptance_rates",
           fmt::format("{} rates for {} drafted tokens", rates.size(), num_drafts));
  }
  if (!rates.empty()) (void)SyntheticAcceptance(rates);  // throws
  if (speculation.costs) speculation.costs->validate();
}

}  // namespace

LogitRows max_logit_rows(const EngineOptions& options, std::int32_t vocab_size) {
  const std::int64_t row_bytes = std::int64_t{vocab_size} * 4;
  const std::int64_t rows =
      std::clamp<std::int64_t>(kPromptLogitBytes / row_bytes, 1, options.max_num_batched_tokens);
  const std::int64_t sampled =
      std::int64_t{options.max_num_seqs} * (std::int64_t{options.speculation.num_drafts} + 1);
  return {.max_sampled = static_cast<std::int32_t>(std::min<std::int64_t>(
              sampled, std::max(options.max_num_batched_tokens, options.max_num_seqs))),
          .max_prompt = static_cast<std::int32_t>(rows)};
}

void validate_options(const EngineOptions& options, const ModelRunner& runner) {
  check_at_least("max_model_len", options.max_model_len, 1);
  check_at_least("max_num_seqs", options.max_num_seqs, 1);
  check_at_least("max_adapters", options.max_adapters, 1);
  check_at_least("max_num_queued_requests", options.max_num_queued_requests, 1);
  check_at_least("max_num_queued_tokens", options.max_num_queued_tokens, 0);
  check_at_least("long_prefill_token_threshold", options.long_prefill_token_threshold, 0);
  check_at_least("max_logprobs", options.max_logprobs, -1);
  const std::int32_t num_drafts = options.speculation.num_drafts;
  check_at_least("num_speculative_tokens", num_drafts, 0);
  if (num_drafts > 0 && runner.max_draft_tokens() == 0) {
    refuse("num_speculative_tokens", "speculative decoding needs a drafter, and none is loaded");
  }
  check_speculation(options.speculation);
  if (num_drafts > runner.max_draft_tokens()) {
    refuse("num_speculative_tokens",
           fmt::format("num_speculative_tokens = {}, but the drafter proposes at most {}",
                       num_drafts, runner.max_draft_tokens()));
  }
  if (!(options.target_itl_ms >= 0) || std::isinf(options.target_itl_ms)) {
    refuse("target_itl_ms", "target_itl_ms must be a finite number of milliseconds, at least 0");
  }
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    refuse(
        "max_num_batched_tokens",
        fmt::format("max_num_batched_tokens = {} must be at least max_num_seqs = {}: each running "
                    "sequence needs a token in every step",
                    options.max_num_batched_tokens, options.max_num_seqs),
        "raise --max-num-batched-tokens or lower --max-num-seqs");
  }
  for (const TokenId token : options.stop_token_ids) {
    if (token < 0 || token >= runner.vocab_size()) {
      refuse("stop_token_ids",
             fmt::format("the model's stop token {} is outside its vocabulary of {}", token,
                         runner.vocab_size()));
    }
  }
}

void validate_request(const GenerationRequest& request, const EngineOptions& options,
                      const ModelRunner& runner) {
  if (request.prompt.empty()) refuse("prompt", "the prompt is empty: it needs at least one token");
  request.sampling.validate(runner.vocab_size(), options.max_logprobs);
  for (const TokenId token : request.prompt) {
    if (token < 0 || token >= runner.vocab_size()) {
      refuse("prompt", fmt::format("the prompt holds token id {}, but ids are in [0, {})", token,
                                   runner.vocab_size()));
    }
  }
  check_at_least("num_block_selections", request.num_block_selections, 0);
  if (request.num_block_selections > 0 && runner.selection_shape().row_size() == 0) {
    refuse("num_block_selections", "this model has no sparse attention: it selects no blocks");
  }
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t num_output = request.sampling.max_tokens;
  if (num_prompt + num_output > options.max_model_len) {
    refuse(
        "max_tokens",
        fmt::format("this model's maximum context length is {} tokens, but {} were asked for: {} "
                    "in the prompt and {} to generate",
                    options.max_model_len, num_prompt + num_output, num_prompt, num_output),
        "shorten the prompt or lower max_tokens");
  }
  // The last token's values are never needed.
  const std::int64_t num_cached = num_prompt + std::max<std::int64_t>(num_output - 1, 0);
  const std::int64_t pool_tokens = std::int64_t{runner.num_blocks()} * runner.block_tokens();
  if (num_cached > pool_tokens) {
    refuse("max_tokens",
           fmt::format("{} tokens in the prompt and {} to generate need {} slots of the KV cache, "
                       "which has {}: its maximum context length is too small for this request",
                       num_prompt, num_output, num_cached, pool_tokens),
           "shorten the prompt, lower max_tokens, or start the server with a larger KV cache");
  }
}

}  // namespace winnow
