// The sampler's definition in a few slow lines of double precision, for tests: full sorts, no
// shortcuts, written from spec/serving.md 2.2 and not from the sampler.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "engine/sampling_params.h"

namespace winnow::testing {

struct Reference {
  std::vector<double> logits;         // after masks, bias and penalties
  std::vector<double> probabilities;  // what is drawn from; one-hot when greedy
};

inline Reference reference_distribution(std::span<const float> raw, const SamplingParams& params,
                                        std::span<const TokenId> end_ids,
                                        std::span<const TokenId> prompt,
                                        std::span<const TokenId> output) {
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  const std::size_t size = raw.size();
  std::vector<double> logits(raw.begin(), raw.end());
  const auto has = [](const auto& list, TokenId token) {
    return std::ranges::count(list, token) > 0;
  };
  std::vector<TokenId> context(prompt.begin(), prompt.end());
  context.insert(context.end(), output.begin(), output.end());

  for (std::size_t i = 0; i < size; ++i) {
    const auto token = static_cast<TokenId>(i);
    double& logit = logits[i];
    if (!params.allowed_token_ids.empty() && !has(params.allowed_token_ids, token)) logit = kMasked;
    for (const std::vector<TokenId>& word : params.bad_words) {
      if (word.back() != token || word.size() > context.size() + 1) continue;
      if (std::equal(word.begin(), word.end() - 1,
                     context.end() - static_cast<std::ptrdiff_t>(word.size() - 1))) {
        logit = kMasked;
      }
    }
    if (static_cast<int>(output.size()) < params.min_tokens && has(end_ids, token)) logit = kMasked;
    for (const auto& [biased, bias] : params.logit_bias) {
      if (biased == token) logit += std::clamp(static_cast<double>(bias), -100.0, 100.0);
    }
    const auto count = static_cast<double>(std::ranges::count(output, token));
    if (has(context, token)) {
      const auto r = static_cast<double>(params.repetition_penalty);
      logit = logit > 0 ? logit / r : logit * r;
    }
    logit -= static_cast<double>(params.frequency_penalty) * count;
    if (count > 0) logit -= static_cast<double>(params.presence_penalty);
  }

  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  Reference reference{.logits = logits, .probabilities = std::vector<double>(size, 0.0)};
  if (params.temperature < 1e-5F) {
    reference.probabilities[order[0]] = 1.0;
    return reference;
  }
  std::size_t kept = size;
  if (params.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(params.top_k));
  const auto weight = [&](std::size_t i) {
    return std::exp((logits[i] - logits[order[0]]) / static_cast<double>(params.temperature));
  };
  double total = 0;
  for (std::size_t j = 0; j < kept; ++j) total += weight(order[j]);
  if (params.top_p < 1.0F) {
    double sum = 0;
    std::size_t j = 0;
    while (j < kept && sum < static_cast<double>(params.top_p) * total) sum += weight(order[j++]);
    kept = std::max<std::size_t>(j, 1);
  }
  double normaliser = 0;
  for (std::size_t j = 0; j < kept; ++j) {
    if (weight(order[j]) < static_cast<double>(params.min_p)) break;
    reference.probabilities[order[j]] = weight(order[j]);
    normaliser += weight(order[j]);
  }
  for (double& probability : reference.probabilities) probability /= normaliser;
  return reference;
}

}  // namespace winnow::testing
