#include "engine/sample/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include "engine/sample/draw.h"
#include "engine/sample/logprobs.h"
#include "engine/sample/row_kernels.h"

namespace winnow {
namespace {

/// Which tokens a row is drawn from.
struct Kept {
  bool is_listed = false;   // scratch.candidates holds them; else the whole row is meant
  float min_weight = 0.0F;  // of the whole row: lighter ones are out
};

/// The lightest weight that a run of leading tokens with `share` of the row's mass can need, to a
/// power of two: masses are summed by the weights' exponents. `total` is the row's mass.
float lightest_needed(std::span<const float> weights, double share, std::uint64_t& total) {
  constexpr std::size_t kExponents = 128;  // weights are at most 1
  std::array<std::uint64_t, kExponents> masses{};
  for (const float weight : weights) {
    masses[std::bit_cast<std::uint32_t>(weight) >> 23] += weight_mass(weight);
  }
  total = std::accumulate(masses.begin(), masses.end(), std::uint64_t{0});
  const double target = share * static_cast<double>(total);
  std::uint64_t heavier = 0;
  std::size_t exponent = kExponents;
  while (exponent > 0 && static_cast<double>(heavier) <= target) heavier += masses[--exponent];
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

void list_top_p(std::span<const float> logits, const RowScan& scan, float inverse_temperature,
                float top_p, SampleScratch& scratch) {
  scratch.weights.resize(logits.size());
  row_kernels().fill_weights(logits, scan.max, inverse_temperature, scratch.weights);
  std::uint64_t total = 0;
  const float lightest = lightest_needed(scratch.weights, static_cast<double>(top_p), total);
  scratch.candidates.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!(scratch.weights[i] >= lightest)) continue;
    scratch.candidates.push_back(
        {.logit = logits[i], .token = static_cast<TokenId>(i), .weight = scratch.weights[i]});
  }
  keep_top_p(scratch.candidates, static_cast<double>(top_p), total);
}

void list_top_k(std::span<const float> logits, const RowScan& scan, const ops::Draw& draw,
                SampleScratch& scratch) {
  select_top_k(logits, draw.top_k, scratch.candidates);
  std::uint64_t total = 0;
  for (Candidate& candidate : scratch.candidates) {
    row_kernels().fill_weights({&candidate.logit, 1}, scan.max, draw.inverse_temperature,
                               {&candidate.weight, 1});
    total += weight_mass(candidate.weight);
  }
  if (draw.top_p < 1.0F) {
    keep_top_p(scratch.candidates, static_cast<double>(draw.top_p), total);
  }
}

Kept truncate(std::span<const float> logits, const RowScan& scan, const ops::Draw& draw,
              SampleScratch& scratch) {
  const auto vocab_size = static_cast<std::int32_t>(logits.size());
  if (draw.top_k > 0 && draw.top_k < vocab_size) {
    list_top_k(logits, scan, draw, scratch);
  } else if (draw.top_p < 1.0F) {
    list_top_p(logits, scan, draw.inverse_temperature, draw.top_p, scratch);
  } else {
    return {.min_weight = draw.min_p};
  }
  std::erase_if(scratch.candidates,
                [&](const Candidate& candidate) { return candidate.weight < draw.min_p; });
  return {.is_listed = true};
}

TokenId draw_kept(std::span<const float> logits, const RowScan& scan, const ops::Draw& draw,
                  const Kept& kept, SampleScratch& scratch) {
  const DrawKey key{.seed = draw.seed, .choice = draw.choice, .position = draw.position};
  return kept.is_listed ? draw_candidate(scratch.candidates, key)
                        : draw_row({.logits = logits,
                                    .max = scan.max,
                                    .argmax = scan.argmax,
                                    .inverse_temperature = draw.inverse_temperature,
                                    .min_weight = kept.min_weight},
                                   key);
}

/// Turns scratch.row into the log-distribution that was drawn from, up to a constant.
void keep_processed(const Kept& kept, const RowScan& scan, float inverse_temperature,
                    std::span<const float> logits, SampleScratch& scratch) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  if (kept.is_listed) {
    scratch.row.assign(logits.size(), kMasked);
    for (const Candidate& candidate : scratch.candidates) {
      scratch.row[static_cast<std::size_t>(candidate.token)] =
          (candidate.logit - scan.max) * inverse_temperature;
    }
    return;
  }
  scratch.weights.resize(logits.size());
  row_kernels().fill_weights(logits, scan.max, inverse_temperature, scratch.weights);
  scratch.row.resize(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float scaled = (logits[i] - scan.max) * inverse_temperature;
    scratch.row[i] = scratch.weights[i] < kept.min_weight ? kMasked : scaled;
  }
}

}  // namespace

SampleState::SampleState(const SampleRules& rules, std::uint32_t number,
                         std::span<const TokenId> prompt, std::unique_ptr<TokenFilter> start)
    : choice(number), penalties(*rules.params, prompt), filter(std::move(start)) {}

void SampleState::accept(TokenId token) {
  penalties.add_output(token);
  if (filter) filter->accept(token);
}

ops::Draw make_draw(const SampleRules& rules, std::uint32_t choice,
                    std::span<const TokenId> context) {
  const SamplingParams& params = *rules.params;
  return {.seed = rules.seed,
          .choice = choice,
          .position = static_cast<std::uint32_t>(context.size() - 1),
          .inverse_temperature = rules.is_greedy() ? 1.0F : 1.0F / params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k,
          .is_greedy = rules.is_greedy() ? 1 : 0};
}

TokenId draw_token(std::span<const float> logits, const RowScan& scan, const ops::Draw& draw,
                   SampleScratch& scratch) {
  if (draw.is_greedy != 0) return scan.argmax;
  return draw_kept(logits, scan, draw, truncate(logits, scan, draw, scratch), scratch);
}

Sample sample_token(std::span<const float> raw, const SampleRules& rules, SampleState& state,
                    std::span<const TokenId> context, std::int32_t num_output,
                    SampleScratch& scratch) {
  const SamplingParams& params = *rules.params;
  RowScan scan = row_kernels().scan(raw);
  if (scan.is_bad || scan.max == -std::numeric_limits<float>::infinity()) {
    return {.status = SampleStatus::kCorruptLogits};
  }

  std::span<const float> logits = raw;
  bool has_filter_mask = false;
  if (state.filter) {
    scratch.mask.resize((raw.size() + 31) / 32);
    has_filter_mask = state.filter->fill_mask(scratch.mask);
  }
  if (has_filter_mask || rules.has_masks(num_output) || state.penalties.is_active()) {
    scratch.row.assign(raw.begin(), raw.end());
    if (has_filter_mask) apply_filter_mask(scratch.mask, scratch.row);
    apply_masks(rules, context, num_output, scratch.row);
    state.penalties.apply(scratch.row);
    logits = scratch.row;
    scan = row_kernels().scan(logits);
    if (scan.max == -std::numeric_limits<float>::infinity()) {
      return {.status = SampleStatus::kNothingAllowed};
    }
  }

  Sample sample{.token = scan.argmax};
  const ops::Draw draw = make_draw(rules, state.choice, context);
  Kept kept;
  if (!rules.is_greedy()) {
    kept = truncate(logits, scan, draw, scratch);
    sample.token = draw_kept(logits, scan, draw, kept, scratch);
  }

  if (params.logprobs || !params.logprob_token_ids.empty()) {
    const LogprobQuery query{.chosen = sample.token,
                             .num_top = params.logprobs.value_or(0),
                             .listed = params.logprob_token_ids};
    std::span<const float> reported = raw;
    if (params.processed_logprobs) {
      keep_processed(kept, scan, draw.inverse_temperature, logits, scratch);
      reported = scratch.row;
    }
    sample.logprobs = row_logprobs(reported, query, scratch.ranking);
  }
  return sample;
}

}  // namespace winnow
