#include "engine/sample/logprobs.h"

#include <algorithm>

#include "base/exact_math.h"
#include "engine/sample/row_kernels.h"

namespace winnow {

PositionLogprobs row_logprobs(std::span<const float> logits, const LogprobQuery& query,
                              std::vector<Candidate>& scratch) {
  const RowKernels& kernels = row_kernels();
  const float max = kernels.scan(logits).max;
  const double log_sum = natural_log(kernels.sum_weights(logits, max, 1.0F));
  const auto logprob = [&](TokenId token) {
    const auto logit = static_cast<double>(logits[static_cast<std::size_t>(token)]);
    return static_cast<float>(logit - static_cast<double>(max) - log_sum);
  };
  const auto ranked = [&](TokenId token) {
    return TokenLogprob{
        .token = token, .logprob = logprob(token), .rank = 1 + kernels.count_ahead(logits, token)};
  };

  PositionLogprobs result{.chosen = ranked(query.chosen)};
  if (query.num_top != 0) {
    const auto vocab_size = static_cast<std::int32_t>(logits.size());
    const std::int32_t num_top =
        query.num_top < 0 ? vocab_size : std::min(query.num_top, vocab_size);
    select_top_k(logits, num_top, scratch);
    std::ranges::sort(scratch, is_ahead);
    result.top.reserve(scratch.size());
    for (const Candidate& candidate : scratch) {
      result.top.push_back({.token = candidate.token,
                            .logprob = logprob(candidate.token),
                            .rank = static_cast<std::int32_t>(result.top.size()) + 1});
    }
  }
  result.listed.reserve(query.listed.size());
  for (const TokenId token : query.listed) result.listed.push_back(ranked(token));
  return result;
}

}  // namespace winnow
