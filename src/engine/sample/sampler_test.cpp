#include "engine/sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "engine/testing/reference_sampler.h"

namespace winnow {
namespace {

using testing::Reference;
using testing::reference_distribution;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(std::uint64_t seed, std::size_t size, float scale = 3.0F) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

/// One draw after `prompt` and `output`, as the engine makes it.
Sample draw_next(std::span<const float> logits, const SamplingParams& params,
                 const std::vector<TokenId>& prompt, const std::vector<TokenId>& output,
                 std::span<const TokenId> model_stop_ids = {}, std::uint32_t choice = 0,
                 std::unique_ptr<TokenFilter> filter = nullptr) {
  const SampleRules rules(params, model_stop_ids, 77);
  SampleState state(rules, choice, prompt, std::move(filter));
  std::vector<TokenId> context = prompt;
  for (const TokenId token : output) {
    state.accept(token);
    context.push_back(token);
  }
  SampleScratch scratch;
  return sample_token(logits, rules, state, context, static_cast<std::int32_t>(output.size()),
                      scratch);
}

/// Chi-square of `counts` against `probabilities`; tokens expected less than 5 times are pooled.
/// Returns how many standard deviations it lies above its mean.
double chi_square_deviation(const std::vector<std::int64_t>& counts,
                            const std::vector<double>& probabilities, std::int64_t num_draws) {
  double chi_square = 0, degrees = -1, pooled_expected = 0, pooled_seen = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(num_draws);
    const auto seen = static_cast<double>(counts[i]);
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " has probability 0";
    } else if (expected < 5) {
      pooled_expected += expected;
      pooled_seen += seen;
    } else {
      chi_square += (seen - expected) * (seen - expected) / expected;
      ++degrees;
    }
  }
  if (pooled_expected > 0) {
    const double off = pooled_seen - pooled_expected;
    chi_square += off * off / std::max(pooled_expected, 1.0);
    ++degrees;
  }
  if (degrees < 1) return 0;
  return (chi_square - degrees) / std::sqrt(2 * degrees);
}

struct DistributionCase {
  const char* name;
  SamplingParams params;
};

std::vector<DistributionCase> distribution_cases() {
  std::vector<DistributionCase> cases;
  const auto add = [&](const char* name) -> SamplingParams& {
    cases.push_back({.name = name, .params = {}});
    cases.back().params.max_tokens = 100;
    return cases.back().params;
  };
  add("plain");
  add("cool").temperature = 0.4F;
  add("hot").temperature = 3.0F;
  add("top_k").top_k = 5;
  add("top_k 1").top_k = 1;
  add("top_p").top_p = 0.8F;
  add("tiny top_p").top_p = 1e-6F;
  add("min_p").min_p = 0.1F;
  {
    SamplingParams& p = add("all truncations");
    p.temperature = 1.7F;
    p.top_k = 12;
    p.top_p = 0.9F;
    p.min_p = 0.05F;
  }
  add("top_k beyond the vocabulary").top_k = 1000;
  add("repetition").repetition_penalty = 1.8F;
  add("repetition below one").repetition_penalty = 0.6F;
  add("presence").presence_penalty = 1.5F;
  add("negative presence").presence_penalty = -2.0F;
  add("frequency").frequency_penalty = 0.7F;
  add("negative frequency").frequency_penalty = -0.5F;
  add("bias").logit_bias = {{3, 4.0F}, {7, -1000.0F}, {3, 1.0F}};
  add("allowed").allowed_token_ids = {2, 9, 4, 9, 19};
  add("bad words").bad_words = {{1}, {8, 2}, {8, 9, 3}, {9, 9}, {8, 9, 9, 9, 9, 9, 9, 9, 6}};
  {
    SamplingParams& p = add("min_tokens");
    p.min_tokens = 50;
    p.stop_token_ids = {4, 5};
  }
  {
    SamplingParams& p = add("everything");
    p.temperature = 0.8F;
    p.top_p = 0.95F;
    p.top_k = 15;
    p.repetition_penalty = 1.2F;
    p.presence_penalty = 0.3F;
    p.frequency_penalty = 0.2F;
    p.logit_bias = {{6, 2.5F}};
    p.bad_words = {{9, 12}};
  }
  return cases;
}

TEST(Sampler, DrawsEachTokenWithItsExactProbability) {
  constexpr std::int64_t kDraws = 40000;
  constexpr std::size_t kVocab = 24;
  const std::vector<TokenId> prompt = {1, 5, 5, 17, 8};
  const std::vector<TokenId> output = {9, 9, 3, 11, 8, 9};
  const std::vector<TokenId> eos = {23, 0};
  for (const DistributionCase& c : distribution_cases()) {
    const std::vector<float> logits = random_logits(5, kVocab, 1.5F);
    SamplingParams params = c.params;
    std::vector<TokenId> end_ids = params.stop_token_ids;
    end_ids.insert(end_ids.end(), eos.begin(), eos.end());
    const Reference reference = reference_distribution(logits, params, end_ids, prompt, output);
    std::vector<std::int64_t> counts(kVocab, 0);
    for (std::int64_t i = 0; i < kDraws; ++i) {
      params.seed = i;
      const Sample sample = draw_next(logits, params, prompt, output, eos);
      ASSERT_EQ(sample.status, SampleStatus::kOk) << c.name;
      ++counts[static_cast<std::size_t>(sample.token)];
    }
    EXPECT_LT(chi_square_deviation(counts, reference.probabilities, kDraws), 4.0) << c.name;
  }
}

TEST(Sampler, PositionsChoicesAndSeedsAreIndependent) {
  // Pairs of draws that differ in one part of the key: their joint counts are products.
  constexpr std::size_t kVocab = 5;
  constexpr std::int64_t kDraws = 60000;
  const std::vector<float> logits = {0.0F, 0.5F, 1.0F, -0.5F, 0.2F};
  SamplingParams params;
  params.max_tokens = 100;
  const Reference one = reference_distribution(logits, params, {}, {}, {});
  std::vector<double> joint(kVocab * kVocab);
  for (std::size_t i = 0; i < joint.size(); ++i) {
    joint[i] = one.probabilities[i / kVocab] * one.probabilities[i % kVocab];
  }
  for (const int part : {0, 1, 2}) {
    std::vector<std::int64_t> counts(kVocab * kVocab, 0);
    for (std::int64_t i = 0; i < kDraws; ++i) {
      params.seed = 2 * i;
      const std::vector<TokenId> prompt = {1, 2, 3};
      const TokenId a = draw_next(logits, params, prompt, {}).token;
      if (part == 2) params.seed = 2 * i + 1;
      const TokenId b = draw_next(logits, params, prompt,
                                  part == 0 ? std::vector<TokenId>{1} : std::vector<TokenId>{}, {},
                                  part == 1 ? 1 : 0)
                            .token;
      ++counts[static_cast<std::size_t>(a) * kVocab + static_cast<std::size_t>(b)];
    }
    EXPECT_LT(chi_square_deviation(counts, joint, kDraws), 4.0) << "part " << part;
  }
}

TEST(Sampler, DrawDependsOnThePositionNotOnHowItIsSplitIntoPromptAndOutput) {
  const std::vector<float> logits = random_logits(8, 300);
  SamplingParams params;
  params.seed = 4;
  params.max_tokens = 100;
  EXPECT_EQ(draw_next(logits, params, {1, 2, 3, 4}, {}).token,
            draw_next(logits, params, {1, 2}, {3, 4}).token);
}

// Texts of seeds are kept from release to release: whoever changes these numbers changes them.
TEST(Sampler, SeedsKeepTheirDraws) {
  std::vector<float> logits(1000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 37) * 0.125F;
  SamplingParams params;
  params.max_tokens = 100;
  std::vector<TokenId> drawn;
  for (const std::int64_t seed :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{-1}, std::int64_t{1234567890123}}) {
    params.seed = seed;
    params.top_k = 0;
    drawn.push_back(draw_next(logits, params, {1, 2, 3}, {}).token);
    params.top_k = 40;
    drawn.push_back(draw_next(logits, params, {1, 2, 3}, {}).token);
  }
  EXPECT_EQ(drawn, (std::vector<TokenId>{887, 887, 717, 702, 921, 220, 623, 887}));
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheHighestLogit) {
  for (const std::size_t size : {1UL, 2UL, 15UL, 16UL, 17UL, 1000UL}) {
    for (std::size_t best = 0; best < size; best += 1 + size / 7) {
      std::vector<float> logits(size, -2.0F);
      logits[best] = 1.0F;
      logits.back() = 1.0F;
      SamplingParams params;
      params.temperature = 0.0F;
      params.top_p = 0.1F;
      EXPECT_EQ(draw_next(logits, params, {0}, {}).token, static_cast<TokenId>(best));
    }
  }
}

TEST(Sampler, EqualLogitsAtTheCutKeepTheLowerIds) {
  const std::vector<float> logits(100, 1.5F);
  SamplingParams params;
  params.max_tokens = 100;
  for (std::int64_t seed = 0; seed < 200; ++seed) {
    params.seed = seed;
    params.top_k = 10;
    params.top_p = 1.0F;
    EXPECT_LT(draw_next(logits, params, {0}, {}).token, 10);
    params.top_k = 0;
    params.top_p = 0.095F;
    EXPECT_LT(draw_next(logits, params, {0}, {}).token, 10);
  }
}

TEST(Sampler, ReportsCorruptLogitsAndContradictions) {
  SamplingParams params;
  for (const float bad : {std::nanf(""), kInfinity, -std::nanf("")}) {
    for (const std::size_t at : {0UL, 15UL, 16UL, 32UL}) {
      std::vector<float> logits = random_logits(1, 33);
      logits[at] = bad;
      EXPECT_EQ(draw_next(logits, params, {0}, {}).status, SampleStatus::kCorruptLogits);
    }
  }
  EXPECT_EQ(draw_next(std::vector<float>(20, -kInfinity), params, {0}, {}).status,
            SampleStatus::kCorruptLogits);
  params.allowed_token_ids = {3};
  params.bad_words = {{3}};
  EXPECT_EQ(draw_next(random_logits(1, 20), params, {0}, {}).status, SampleStatus::kNothingAllowed);
}

TEST(Sampler, ExtremeParametersStayFinite) {
  std::vector<float> logits = random_logits(2, 50);
  logits[7] = -kInfinity;
  logits[9] = std::numeric_limits<float>::max();
  SamplingParams params;
  params.max_tokens = 10;
  params.logprobs = 50;
  params.processed_logprobs = true;
  for (const float temperature : {0.0F, 1e-6F, 1e-5F, 1e10F, 3e38F}) {
    for (const float repetition : {1e-38F, 1.0F, 1e38F}) {
      params.temperature = temperature;
      params.repetition_penalty = repetition;
      const Sample sample = draw_next(logits, params, {7, 9, 11}, {9, 9});
      ASSERT_EQ(sample.status, SampleStatus::kOk);
      for (const TokenLogprob& entry : sample.logprobs->top)
        EXPECT_FALSE(std::isnan(entry.logprob));
    }
  }
}

/// Allows the tokens of one residue; notes what it is told.
class ResidueFilter final : public TokenFilter {
 public:
  explicit ResidueFilter(std::uint32_t residue) : residue_(residue) {}
  bool fill_mask(std::span<std::uint32_t> mask) override {
    if (num_accepted_ == 0) return false;
    std::ranges::fill(mask, 0U);
    for (std::uint32_t t = residue_; t < mask.size() * 32; t += 7) mask[t / 32] |= 1U << t % 32;
    return true;
  }
  void accept(TokenId /*token*/) override { ++num_accepted_; }
  void rollback(std::int32_t num_tokens) override { num_accepted_ -= num_tokens; }
  std::unique_ptr<TokenFilter> clone() const override {
    return std::make_unique<ResidueFilter>(*this);
  }

 private:
  std::uint32_t residue_;
  std::int32_t num_accepted_ = 0;
};

TEST(Sampler, HonoursATokenFilter) {
  SamplingParams params;
  params.max_tokens = 100;
  std::set<TokenId> free, constrained;
  for (std::int64_t seed = 0; seed < 300; ++seed) {
    params.seed = seed;
    const std::vector<float> logits = random_logits(static_cast<std::uint64_t>(seed), 45);
    free.insert(
        draw_next(logits, params, {0}, {}, {}, 0, std::make_unique<ResidueFilter>(3)).token % 7);
    constrained.insert(
        draw_next(logits, params, {0}, {1}, {}, 0, std::make_unique<ResidueFilter>(3)).token % 7);
  }
  EXPECT_EQ(free.size(), 7U);
  EXPECT_EQ(constrained, std::set<TokenId>{3});
}

/// Bars the tokens of `barred`, and has a way around them.
class DetourFilter final : public TokenFilter {
 public:
  DetourFilter(std::vector<TokenId> barred, TokenId detour)
      : barred_(std::move(barred)), detour_(detour) {}
  bool fill_mask(std::span<std::uint32_t> mask) override {
    std::ranges::fill(mask, ~0U);
    for (const TokenId token : barred_) mask[0] &= ~(1U << token);
    return true;
  }
  std::optional<TokenId> end_detour() const override { return detour_; }
  void accept(TokenId /*token*/) override {}
  void rollback(std::int32_t /*num_tokens*/) override {}
  std::unique_ptr<TokenFilter> clone() const override {
    return std::make_unique<DetourFilter>(*this);
  }

 private:
  std::vector<TokenId> barred_;
  TokenId detour_;
};

TEST(Sampler, WhoeverWouldEndTakesTheDetour) {
  SamplingParams params;
  params.temperature = 0.0F;
  const std::vector<TokenId> ends = {4, 5};
  const auto draw = [&](const std::vector<float>& logits, std::vector<TokenId> barred,
                        TokenId detour) {
    return draw_next(logits, params, {0}, {}, ends, 0,
                     std::make_unique<DetourFilter>(std::move(barred), detour))
        .token;
  };
  EXPECT_EQ(draw({0, 3, 1, 2, 5, 4}, {4, 5}, 2), 2);     // the end is likeliest
  EXPECT_EQ(draw({0, 6, 1, 2, 5, 4}, {4, 5}, 2), 1);     // thinking on is
  EXPECT_EQ(draw({0, 3, 7, 2, 5, 4}, {4, 5}, 2), 2);     // the detour itself is
  EXPECT_EQ(draw({0, 3, 1, 2, 5, 4}, {5}, 2), 4);        // this end may come
  EXPECT_EQ(draw({0, 3, 1, 2, 5, 4}, {2, 4, 5}, 2), 1);  // barred, it is no detour
  EXPECT_EQ(draw({0, 3, 1, 9, 2, 1}, {3, 4, 5}, 2), 1);  // 3 ends nothing
  params.min_tokens = 5;                                 // holds ends back, not the way on
  params.max_tokens = 9;
  EXPECT_EQ(draw({0, 3, 1, 2, 5, 4}, {4, 5}, 2), 2);
}

TEST(Sampler, MatchesTheSortedReferenceOnALargeVocabulary) {
  constexpr std::size_t kVocab = 200064;
  for (const float scale : {0.01F, 1.0F, 4.0F}) {
    const std::vector<float> logits = random_logits(11, kVocab, scale);
    for (const int which : {0, 1, 2, 3, 4, 5}) {
      SamplingParams params;
      params.max_tokens = 10;
      params.processed_logprobs = true;
      params.logprobs = -1;
      if (which == 0) params.top_k = 40;
      if (which == 1) params.top_p = 0.95F;
      if (which == 2) params.min_p = 0.02F;
      if (which == 3) params.top_k = 5000;
      if (which == 4) params.top_p = 0.3F;
      if (which >= 3) params.temperature = 0.7F;
      if (which == 5) params.top_k = 100000, params.top_p = 0.999F, params.min_p = 1e-4F;
      const Reference reference = reference_distribution(logits, params, {}, {}, {});
      const Sample sample = draw_next(logits, params, {0}, {});
      ASSERT_EQ(sample.status, SampleStatus::kOk);
      EXPECT_GT(reference.probabilities[static_cast<std::size_t>(sample.token)], 0.0);
      std::size_t num_differing = 0;
      for (const TokenLogprob& entry : sample.logprobs->top) {
        const double p = reference.probabilities[static_cast<std::size_t>(entry.token)];
        if ((p > 0) != (entry.logprob != -kInfinity)) {
          ++num_differing;  // at the very edge of top-p or min-p fp32 weights may round either way
        } else if (p > 0) {
          EXPECT_NEAR(entry.logprob, std::log(p), 2e-5) << "scale " << scale << " case " << which;
        }
      }
      EXPECT_LE(num_differing, which == 0 || which == 3 ? 0U : 2U)
          << "scale " << scale << " case " << which;
    }
  }
}

TEST(Sampler, ReportsRawLogprobsWithRanksAndTies) {
  std::vector<float> logits = {1.0F, 2.0F, 2.0F, -kInfinity, 0.5F, 2.0F};
  SamplingParams params;
  params.temperature = 0.0F;
  params.logprobs = 4;
  params.logprob_token_ids = {3, 4};
  params.logit_bias = {{4, 50.0F}};  // decides the choice, not the raw logprobs
  const Sample sample = draw_next(logits, params, {0}, {});
  const double log_sum = std::log(std::exp(1.0) + 3 * std::exp(2.0) + std::exp(0.5));
  ASSERT_TRUE(sample.logprobs.has_value());
  EXPECT_EQ(sample.token, 4);
  EXPECT_EQ(sample.logprobs->chosen.rank, 5);
  EXPECT_NEAR(sample.logprobs->chosen.logprob, 0.5 - log_sum, 1e-6);
  ASSERT_EQ(sample.logprobs->top.size(), 4U);
  const std::vector<TokenId> order = {1, 2, 5, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sample.logprobs->top[i].token, order[i]);
    EXPECT_EQ(sample.logprobs->top[i].rank, static_cast<std::int32_t>(i) + 1);
  }
  EXPECT_EQ(sample.logprobs->listed[0].logprob, -kInfinity);
  EXPECT_EQ(sample.logprobs->listed[0].rank, 6);
  EXPECT_EQ(sample.logprobs->listed[1].token, 4);
}

// cases.md I3: more alternatives than tokens of non-zero probability.
TEST(Sampler, FillsAlternativesWithMinusInfinity) {
  SamplingParams params;
  params.top_p = 1e-9F;
  params.logprobs = 5;
  params.processed_logprobs = true;
  const Sample sample = draw_next(random_logits(3, 30), params, {0}, {});
  ASSERT_EQ(sample.logprobs->top.size(), 5U);
  EXPECT_EQ(sample.logprobs->top[0].logprob, 0.0F);
  EXPECT_EQ(sample.logprobs->chosen.logprob, 0.0F);
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(sample.logprobs->top[i].logprob, -kInfinity);
}

TEST(Sampler, ProcessedLogprobsAreThoseOfTheDistributionDrawnFrom) {
  const std::vector<float> logits = random_logits(12, 40);
  SamplingParams params;
  params.max_tokens = 10;
  params.temperature = 0.6F;
  params.top_k = 9;
  params.top_p = 0.9F;
  params.repetition_penalty = 1.4F;
  params.logprobs = 40;
  params.processed_logprobs = true;
  const std::vector<TokenId> prompt = {4, 8};
  const Reference reference = reference_distribution(logits, params, {}, prompt, {});
  const Sample sample = draw_next(logits, params, prompt, {});
  for (const TokenLogprob& entry : sample.logprobs->top) {
    const double p = reference.probabilities[static_cast<std::size_t>(entry.token)];
    if (p > 0) {
      EXPECT_NEAR(entry.logprob, std::log(p), 1e-5);
    } else {
      EXPECT_EQ(entry.logprob, -kInfinity);
    }
  }
}

TEST(Penalties, AddAndRemoveLeaveNoTrace) {
  SamplingParams params;
  params.repetition_penalty = 1.5F;
  params.frequency_penalty = 0.5F;
  params.presence_penalty = 0.25F;
  const std::vector<TokenId> prompt = {1, 2};
  Penalties penalties(params, prompt);
  penalties.add_output(5);
  const std::vector<float> start = random_logits(9, 10);
  std::vector<float> before = start;
  penalties.apply(before);
  // A draft is tried and taken back (cases.md D4: each position sees what came before it).
  penalties.add_output(5);
  penalties.add_output(7);
  std::vector<float> during = start;
  penalties.apply(during);
  EXPECT_NE(before[5], during[5]);
  EXPECT_NE(before[7], during[7]);
  penalties.remove_output(7);
  penalties.remove_output(5);
  std::vector<float> after = start;
  penalties.apply(after);
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace winnow
