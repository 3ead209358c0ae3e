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

bool wants_logprobs(const SampleRules& rules) {
  return rules.params->logprobs || !rules.params->logprob_token_ids.empty();
}

struct Reported {
  const SampleRules* rules;
  const ops::Draw* draw;
  TokenId chosen;
};

PositionLogprobs logprobs_of(std::span<const float> raw, const ProcessedRow& row, const Kept& kept,
                             const Reported& what, SampleScratch& scratch) {
  const SamplingParams& params = *what.rules->params;
  const LogprobQuery query{.chosen = what.chosen,
                           .num_top = params.logprobs.value_or(0),
                           .listed = params.logprob_token_ids};
  if (!params.processed_logprobs) return row_logprobs(raw, query, scratch.ranking);
  keep_processed(kept, row.scan, what.draw->inverse_temperature, row.logits, scratch);
  return row_logprobs(scratch.row, query, scratch.ranking);
}

/// Eight sums side by side, then their sum: one addition need not wait for the other.
double sum_in_lanes(std::span<const float> values) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(values[i + lane]);
    }
  }
  for (; i < values.size(); ++i) sums[i % kLanes] += static_cast<double>(values[i]);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// The filter's mask for the next token; none where every token may come.
std::optional<std::span<const std::uint32_t>> filter_mask(SampleState& state,
                                                          std::size_t vocab_size,
                                                          SampleScratch& scratch) {
  if (!state.filter) return std::nullopt;
  if (const auto mask = state.masks_ahead.find()) {
    return mask->empty() ? std::nullopt : mask;
  }
  ++state.num_late_masks;
  scratch.mask.resize((vocab_size + 31) / 32);
  if (!state.filter->fill_mask(scratch.mask)) return std::nullopt;
  return scratch.mask;
}

bool is_allowed(std::span<const std::uint32_t> mask, TokenId token) {
  const auto id = static_cast<std::size_t>(token);
  return (mask[id / 32] >> (id % 32) & 1U) != 0;
}

void apply_filter(const TokenFilter& filter, std::span<const std::uint32_t> mask,
                  const SampleRules& rules, std::span<const float> raw, std::span<float> row) {
  apply_filter_mask(mask, row);
  const std::optional<TokenId> detour = filter.end_detour();
  if (!detour || !is_allowed(mask, *detour)) return;
  float& logit = row[static_cast<std::size_t>(*detour)];
  for (const TokenId token : rules.end_ids) {
    if (!is_allowed(mask, token)) logit = std::max(logit, raw[static_cast<std::size_t>(token)]);
  }
}

}  // namespace

SampleState::SampleState(const SampleRules& rules, std::uint32_t number,
                         std::span<const TokenId> prompt, std::unique_ptr<TokenFilter> start)
    : choice(number), penalties(*rules.params, prompt), filter(std::move(start)) {}

void SampleState::accept(TokenId token) {
  penalties.add_output(token);
  if (!filter) return;
  filter->accept(token);
  masks_ahead.advance(token);
}

void SampleState::take_back(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) penalties.remove_output(token);
  if (!filter || tokens.empty()) return;
  filter->rollback(static_cast<std::int32_t>(tokens.size()));
  masks_ahead.rewind(tokens.size());
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

ProcessedRow process_row(std::span<const float> raw, const SampleRules& rules, SampleState& state,
                         std::span<const TokenId> context, std::int32_t num_output,
                         SampleScratch& scratch) {
  ProcessedRow row{.logits = raw, .scan = row_kernels().scan(raw)};
  if (row.scan.is_bad || row.scan.max == -std::numeric_limits<float>::infinity()) {
    row.status = SampleStatus::kCorruptLogits;
    return row;
  }
  const auto mask = filter_mask(state, raw.size(), scratch);
  if (mask || rules.has_masks(num_output) || state.penalties.is_active()) {
    scratch.row.assign(raw.begin(), raw.end());
    if (mask) apply_filter(*state.filter, *mask, rules, raw, scratch.row);
    apply_masks(rules, context, num_output, scratch.row);
    state.penalties.apply(scratch.row);
    row.logits = scratch.row;
    row.scan = row_kernels().scan(row.logits);
    if (mask && row.scan.max == -std::numeric_limits<float>::infinity() &&
        num_output < rules.params->min_tokens) {
      // Where a grammar leaves nothing but the end, the end may come before min_tokens.
      scratch.row.assign(raw.begin(), raw.end());
      apply_filter(*state.filter, *mask, rules, raw, scratch.row);
      apply_masks(rules, context, rules.params->min_tokens, scratch.row);
      state.penalties.apply(scratch.row);
      row.scan = row_kernels().scan(row.logits);
    }
    if (row.scan.max == -std::numeric_limits<float>::infinity()) {
      row.status = SampleStatus::kNothingAllowed;
    }
  }
  return row;
}

double fill_token_weights(const ProcessedRow& row, const ops::Draw& draw, SampleScratch& scratch,
                          std::span<float> weights) {
  const auto weight_of = [&](TokenId token) -> float& {
    return weights[static_cast<std::size_t>(token)];
  };
  if (draw.is_greedy != 0) {
    std::ranges::fill(weights, 0.0F);
    weight_of(row.scan.argmax) = 1.0F;
    return 1.0;
  }
  const Kept kept = truncate(row.logits, row.scan, draw, scratch);
  if (kept.is_listed) {
    std::ranges::fill(weights, 0.0F);
    for (const Candidate& candidate : scratch.candidates) {
      weight_of(candidate.token) = candidate.weight;
    }
  } else {
    row_kernels().fill_weights(row.logits, row.scan.max, draw.inverse_temperature, weights);
    for (float& weight : weights) weight = weight < kept.min_weight ? 0.0F : weight;
  }
  return sum_in_lanes(weights);
}

std::optional<PositionLogprobs> report_logprobs(std::span<const float> raw, const ProcessedRow& row,
                                                const SampleRules& rules, const ops::Draw& draw,
                                                TokenId chosen, SampleScratch& scratch) {
  if (!wants_logprobs(rules)) return std::nullopt;
  Kept kept;
  if (rules.params->processed_logprobs && draw.is_greedy == 0) {
    kept = truncate(row.logits, row.scan, draw, scratch);
  }
  return logprobs_of(raw, row, kept, {.rules = &rules, .draw = &draw, .chosen = chosen}, scratch);
}

Sample sample_token(std::span<const float> raw, const SampleRules& rules, SampleState& state,
                    std::span<const TokenId> context, std::int32_t num_output,
                    SampleScratch& scratch) {
  const ProcessedRow row = process_row(raw, rules, state, context, num_output, scratch);
  if (row.status != SampleStatus::kOk) return {.status = row.status};
  Sample sample{.token = row.scan.argmax};
  const ops::Draw draw = make_draw(rules, state.choice, context);
  Kept kept;
  if (!rules.is_greedy()) {
    kept = truncate(row.logits, row.scan, draw, scratch);
    sample.token = draw_kept(row.logits, row.scan, draw, kept, scratch);
  }
  if (wants_logprobs(rules)) {
    sample.logprobs = logprobs_of(
        raw, row, kept, {.rules = &rules, .draw = &draw, .chosen = sample.token}, scratch);
  }
  return sample;
}

}  // namespace winnow
