// What verification emits has exactly the target's distribution: G-tests of the first token and of
// joint distributions of the first two and three, against probabilities computed in double
// precision by another implementation, with requests' masks, penalties and a grammar. Faults put in
// on purpose must be noticed by the same tests.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/testing/g_statistic.h"
#include "engine/testing/reference_sampler.h"
#include "engine/testing/toy_speculation.h"

namespace winnow {
namespace {

using testing::DraftKind;
using testing::Fault;
using testing::ToyDrafter;
using testing::ToyFilter;
using testing::ToyModel;
using testing::ToyRun;

// Standard normal quantile of 1 - 1e-7: a sound implementation fails one test of ten million, the
// about 100 of this file together one run of 100,000. Seeds are fixed, so a pass stays a pass.
constexpr double kLimit = 5.2;

struct Setting {
  const char* name = "";
  AcceptMethod method = AcceptMethod::kStandard;
  SamplingParams params{};
  ToyModel target{.seed = 11};
  ToyDrafter drafter{.model = {.seed = 12}, .agreement = 0.4F};
  bool has_grammar = false;
  TokenId grammar_after = -1;
  std::int32_t num_drafts = 3;
};

const std::vector<TokenId> kPrompt = {2, 0, 3, 3};
using Counts = testing::OutputCounts;
using Exact = testing::OutputProbabilities;

std::unique_ptr<ToyFilter> new_filter(const Setting& setting) {
  if (!setting.has_grammar) return nullptr;
  return std::make_unique<ToyFilter>(setting.target.vocab_size, 1, setting.grammar_after);
}

/// Probability of each output of `length` tokens (shorter where an end token is the last).
Exact exact_probabilities(const Setting& setting, std::size_t length) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  Exact exact;
  const std::function<void(std::vector<TokenId>&, double)> extend =
      [&](std::vector<TokenId>& output, double probability) {
        const bool has_ended =
            !output.empty() && std::ranges::count(setting.params.stop_token_ids, output.back()) > 0;
        if (output.size() == length || has_ended) {
          exact[output] += probability;
          return;
        }
        std::vector<TokenId> context = kPrompt;
        context.insert(context.end(), output.begin(), output.end());
        std::vector<float> logits(setting.target.vocab_size);
        setting.target.fill(context, logits);
        if (const auto filter = new_filter(setting)) {
          for (const TokenId token : output) filter->accept(token);
          for (std::size_t t = 0; t < logits.size(); ++t) {
            if (!filter->may_follow(static_cast<TokenId>(t))) logits[t] = kMasked;
          }
        }
        const testing::Reference reference = testing::reference_distribution(
            logits, setting.params, setting.params.stop_token_ids, kPrompt, output);
        for (std::size_t t = 0; t < logits.size(); ++t) {
          if (reference.probabilities[t] == 0) continue;
          output.push_back(static_cast<TokenId>(t));
          extend(output, probability * reference.probabilities[t]);
          output.pop_back();
        }
      };
  std::vector<TokenId> output;
  extend(output, 1.0);
  return exact;
}

struct Run {
  Counts counts;  // of outputs of `length` tokens
  std::int64_t num_steps = 0, num_accepted = 0;
};

/// `num_runs` seeds, each run until it has `length` tokens.
Run sample_runs(const Setting& setting, std::size_t length, std::int64_t num_runs) {
  Run run;
  SampleRules rules(setting.params, {}, 0);
  for (std::int64_t i = 0; i < num_runs; ++i) {
    rules.seed = static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15ULL;
    ToyRun toy(setting.target, setting.drafter, rules, kPrompt, new_filter(setting));
    while (!toy.is_done() && toy.output().size() < length) {
      toy.step(setting.method, setting.num_drafts);
      ++run.num_steps;
      run.num_accepted += toy.verified().num_accepted;
    }
    const auto output = toy.output().first(std::min(toy.output().size(), length));
    ++run.counts[std::vector<TokenId>(output.begin(), output.end())];
  }
  return run;
}

/// Of the first `length` tokens of each output.
template <typename Map>
Map marginal(const Map& map, std::size_t length) {
  Map result;
  for (const auto& [output, value] : map) {
    const auto size = static_cast<std::ptrdiff_t>(std::min(length, output.size()));
    result[{output.begin(), output.begin() + size}] += value;
  }
  return result;
}

/// The largest deviation over the first token and the joint ones up to `length`.
double worst_deviation(const Setting& setting, std::size_t length, std::int64_t num_runs) {
  const Run run = sample_runs(setting, length, num_runs);
  const Exact exact = exact_probabilities(setting, length);
  double worst = 0;
  for (std::size_t n = 1; n <= length; ++n) {
    worst = std::max(worst,
                     testing::g_deviation(marginal(run.counts, n), marginal(exact, n), num_runs));
  }
  EXPECT_GT(run.num_accepted, num_runs / 5) << "drafts hardly take part";
  return worst;
}

std::vector<Setting> settings_of(AcceptMethod method) {
  std::vector<Setting> settings;
  const auto add = [&](const char* name) -> Setting& {
    settings.push_back({.name = name, .method = method});
    settings.back().params.max_tokens = 100;
    return settings.back();
  };
  add("plain");
  add("cool").params.temperature = 0.5F;
  add("one-hot drafts").drafter.kind = DraftKind::kOneHot;
  {
    Setting& s = add("q over three tokens");
    s.drafter.kind = DraftKind::kSparse;
    s.params.top_p = 0.9F;
  }
  {
    Setting& s = add("a padded drafter");
    s.drafter.kind = DraftKind::kPadded;
    s.drafter.agreement = 0.8F;
  }
  {
    Setting& s = add("penalties");
    s.params.repetition_penalty = 1.3F;
    s.params.presence_penalty = 0.5F;
    s.params.frequency_penalty = -0.7F;
  }
  {
    Setting& s = add("masks");
    s.params.top_k = 4;
    s.params.min_p = 0.05F;
    s.params.bad_words = {{1}, {4, 2}};
    s.params.logit_bias = {{5, 1.0F}};
  }
  {
    Setting& s = add("end tokens");
    s.params.stop_token_ids = {4};
    s.params.min_tokens = 1;
  }
  add("grammar").has_grammar = true;
  {
    Setting& s = add("grammar that begins in the block, penalties");
    s.has_grammar = true;
    s.grammar_after = 5;
    s.params.presence_penalty = 1.0F;
  }
  {
    Setting& s = add("blocks cut by confidence, penalties");
    s.drafter.has_confidence = true;
    s.params.frequency_penalty = 0.6F;
    s.num_drafts = 4;
  }
  return settings;
}

class VerifyDistribution : public ::testing::TestWithParam<AcceptMethod> {};

// 3 methods of 11 settings of 33,400 runs: a million outputs, each held against its exact
// probability as a first token, a pair and a triple.
TEST_P(VerifyDistribution, IsTheTargets) {
  for (const Setting& setting : settings_of(GetParam())) {
    EXPECT_LT(worst_deviation(setting, 3, 33'400), kLimit) << setting.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, VerifyDistribution,
                         ::testing::Values(AcceptMethod::kStandard, AcceptMethod::kBlock,
                                           AcceptMethod::kCoupled),
                         [](const auto& instance) -> std::string {
                           switch (instance.param) {
                             case AcceptMethod::kStandard:
                               return "standard";
                             case AcceptMethod::kBlock:
                               return "block";
                             case AcceptMethod::kCoupled:
                               break;
                           }
                           return "coupled";
                         });

// spec 4.7: the draft that a grammar forbids was drawn from q, so its place must not be filled by
// a fresh draw from p.
TEST(VerifyDistributionFaults, FreshDrawAtAGrammarCutIsNoticed) {
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    Setting setting{.method = method, .has_grammar = true};
    setting.params.max_tokens = 100;
    EXPECT_LT(worst_deviation(setting, 2, 20'000), kLimit);
    setting.drafter.fault = Fault::kGrammarCut;
    EXPECT_GT(worst_deviation(setting, 2, 20'000), 2 * kLimit);
  }
}

// Spec 4.8: where a block is cut may depend on anything known before the slot's draft is drawn, and
// on nothing of the draft itself.
TEST(VerifyDistributionFaults, ACutThatLooksAtTheDraftIsNoticed) {
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    Setting setting{.method = method};
    setting.params.max_tokens = 100;
    setting.drafter.has_confidence = true;
    EXPECT_LT(worst_deviation(setting, 2, 20'000), kLimit);
    setting.drafter.fault = Fault::kCutByItsDraft;
    EXPECT_GT(worst_deviation(setting, 2, 20'000), 2 * kLimit);
  }
}

TEST(VerifyDistributionFaults, SharedNumbersAreNoticed) {
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    for (const Fault fault : {Fault::kSharedWithResidual, Fault::kSharedWithTest}) {
      Setting setting{.method = method};
      setting.params.max_tokens = 100;
      setting.target = {.seed = 29, .spread = 6.0F};
      setting.drafter = {.model = {.seed = 129, .spread = 6.0F}, .agreement = 0.0F};
      EXPECT_LT(worst_deviation(setting, 2, 20'000), kLimit);
      setting.drafter.fault = fault;
      EXPECT_GT(worst_deviation(setting, 2, 20'000), 2 * kLimit) << static_cast<int>(fault);
    }
  }
}

// In block mode how many drafts are accepted depends on the numbers of later slots. Were these
// keyed by their own position, the next step would meet the same ones: only the third and fourth
// token show it.
TEST(VerifyDistributionFaults, NumbersThatTwoStepsShareAreNoticed) {
  Setting setting{.method = AcceptMethod::kBlock};
  setting.params.max_tokens = 100;
  setting.num_drafts = 4;
  setting.target = {.seed = 24, .vocab_size = 3, .spread = 4.0F};
  setting.drafter = {.model = {.seed = 124, .vocab_size = 3, .spread = 4.0F}, .agreement = 0.3F};
  EXPECT_LT(worst_deviation(setting, 4, 60'000), kLimit);
  setting.drafter.fault = Fault::kKeyedByPosition;
  EXPECT_GT(worst_deviation(setting, 4, 60'000), 2 * kLimit);
  setting.method = AcceptMethod::kStandard;  // there a test depends on earlier slots alone
  EXPECT_LT(worst_deviation(setting, 4, 60'000), kLimit);
}

}  // namespace
}  // namespace winnow
