#include "engine/sample/sample_rules.h"

#include <algorithm>
#include <limits>

#include "engine/sample/penalties.h"

namespace winnow {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void sort_unique(std::vector<TokenId>& ids) {
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

float& at(std::span<float> logits, TokenId token) {
  return logits[static_cast<std::size_t>(token)];
}

/// Everything between two neighbouring allowed ids goes.
void keep_only(std::span<const TokenId> allowed, std::span<float> logits) {
  std::size_t begin = 0;
  for (const TokenId token : allowed) {
    const auto end = static_cast<std::size_t>(token);
    std::ranges::fill(logits.subspan(begin, end - begin), kMasked);
    begin = end + 1;
  }
  std::ranges::fill(logits.subspan(begin), kMasked);
}

/// The last token of each word whose others are the end of the context.
void mask_bad_words(const std::vector<std::vector<TokenId>>& words,
                    std::span<const TokenId> context, std::span<float> logits) {
  for (const std::vector<TokenId>& word : words) {
    const std::span<const TokenId> start = std::span(word).first(word.size() - 1);
    if (start.size() > context.size()) continue;
    if (std::ranges::equal(start, context.last(start.size()))) at(logits, word.back()) = kMasked;
  }
}

}  // namespace

SampleRules::SampleRules(const SamplingParams& p, std::span<const TokenId> model_stop_ids,
                         std::uint64_t default_seed)
    : params(&p),
      seed(p.seed ? static_cast<std::uint64_t>(*p.seed) : default_seed),
      end_ids(p.stop_token_ids),
      allowed_ids(p.allowed_token_ids) {
  if (!p.ignore_eos) end_ids.insert(end_ids.end(), model_stop_ids.begin(), model_stop_ids.end());
  sort_unique(end_ids);
  sort_unique(allowed_ids);
  for (const std::vector<TokenId>& word : p.bad_words) {
    if (word.size() == 1) banned_ids.push_back(word.front());
  }
  sort_unique(banned_ids);
  if (p.min_tokens > 0) {
    early_banned_ids = banned_ids;
    early_banned_ids.insert(early_banned_ids.end(), end_ids.begin(), end_ids.end());
    sort_unique(early_banned_ids);
  }
  needs_rows = p.logprobs || !p.logprob_token_ids.empty() || !p.logit_bias.empty() ||
               !allowed_ids.empty() || Penalties(p, {}).is_active();
}

bool SampleRules::ends_run(TokenId token) const {
  return std::ranges::binary_search(end_ids, token);
}

bool SampleRules::is_request_stop_id(TokenId token) const {
  return std::ranges::count(params->stop_token_ids, token) > 0;
}

bool SampleRules::has_masks(std::int32_t num_output) const {
  return !allowed_ids.empty() || !params->bad_words.empty() || !params->logit_bias.empty() ||
         (num_output < params->min_tokens && !end_ids.empty());
}

void apply_masks(const SampleRules& rules, std::span<const TokenId> context,
                 std::int32_t num_output, std::span<float> logits) {
  const SamplingParams& params = *rules.params;
  if (!rules.allowed_ids.empty()) keep_only(rules.allowed_ids, logits);
  mask_bad_words(params.bad_words, context, logits);
  if (num_output < params.min_tokens) {
    for (const TokenId token : rules.end_ids) at(logits, token) = kMasked;
  }
  for (const auto& [token, bias] : params.logit_bias) {
    at(logits, token) += std::clamp(bias, -100.0F, 100.0F);
  }
}

void apply_filter_mask(std::span<const std::uint32_t> mask, std::span<float> logits) {
  for (std::size_t word = 0; word < mask.size(); ++word) {
    const std::uint32_t bits = mask[word];
    if (bits == 0xFFFFFFFFU) continue;
    const std::size_t begin = word * 32;
    const std::size_t end = std::min(begin + 32, logits.size());
    for (std::size_t i = begin; i < end; ++i) {
      if ((bits >> (i - begin) & 1U) == 0) logits[i] = kMasked;
    }
  }
}

}  // namespace winnow
