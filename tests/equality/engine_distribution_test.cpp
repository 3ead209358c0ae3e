// Standard and block verification through the whole engine, with lengths that adapt, confidence
// that cuts, batches and penalties: what comes out has the distribution that it has without drafts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine_core.h"
#include "engine/testing/collector.h"
#include "engine/testing/fake_runner.h"
#include "engine/testing/g_statistic.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kVocab = 4;
constexpr std::int32_t kLength = 4;     // of outputs; the first token is drawn without drafts
constexpr std::int64_t kRuns = 20'000;  // of each setting
constexpr double kLimit = 5.2;          // a sound engine fails one of ten million
const std::vector<TokenId> kPrompt = {2, 0, 3};

struct Setting {
  AcceptMethod method = AcceptMethod::kStandard;
  bool is_greedy_draft = false;
  bool has_confidence = true;
  float presence_penalty = 0.0F;
};

EngineOptions options_of(const Setting& setting) {
  EngineOptions options;
  options.max_model_len = 64;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 256;
  options.max_logprobs = -1;
  options.speculation.num_drafts = 3;
  options.speculation.method = setting.method;
  options.speculation.is_greedy_draft = setting.is_greedy_draft;
  options.speculation.is_adaptive = true;
  options.speculation.costs = StepCosts{.bytes_per_second = 1e9,
                                        .fixed_seconds = 1e-3,
                                        .row_seconds = 2e-5,
                                        .draft_fixed_seconds = 1e-4};
  return options;
}

FakeRunnerOptions runner_of(const Setting& setting) {
  return {.vocab_size = kVocab,
          .logit_range = 4.0F,
          .max_drafts = 3,
          .percent_right = 60,
          .has_confidence = setting.has_confidence};
}

SamplingParams params_of(const Setting& setting) {
  SamplingParams params;
  params.ignore_eos = true;
  params.max_tokens = kLength + 4;  // so that blocks are whole
  params.presence_penalty = setting.presence_penalty;
  return params;
}

/// By asking for every token's log-probability after every beginning, without drafts.
OutputProbabilities exact_probabilities(const Setting& setting) {
  OutputProbabilities exact;
  FakeRunnerOptions fake = runner_of(setting);
  fake.max_drafts = 0;
  EngineOptions options = options_of(setting);
  options.speculation = {};
  FakeRunner runner(fake);
  EngineCore core(options, runner, nullptr);
  RequestId id = 0;
  const auto logprobs_after = [&](const std::vector<TokenId>& output) {
    GenerationRequest request;
    request.prompt = kPrompt;
    request.prompt.insert(request.prompt.end(), output.begin(), output.end());
    request.sampling = params_of(setting);
    request.sampling.max_tokens = 1;
    request.sampling.presence_penalty = 0;
    request.sampling.logprobs = kVocab;
    const auto collected = std::make_shared<Collected>();
    collect(request, collected);
    core.submit(++id, std::move(request), Clock::now());
    while (core.has_work()) core.step();
    std::vector<double> logprobs(kVocab);
    for (const TokenLogprob& entry : collected->choices[0].logprobs[0]->top) {
      logprobs[static_cast<std::size_t>(entry.token)] = static_cast<double>(entry.logprob);
    }
    return logprobs;
  };
  const std::function<void(std::vector<TokenId>&, double)> extend =
      [&](std::vector<TokenId>& output, double probability) {
        if (output.size() == kLength) {
          exact[output] = probability;
          return;
        }
        std::vector<double> weights = logprobs_after(output);
        double total = 0;
        for (std::size_t t = 0; t < weights.size(); ++t) {
          const bool is_present = std::ranges::count(output, static_cast<TokenId>(t)) > 0;
          const double penalty = is_present ? static_cast<double>(setting.presence_penalty) : 0.0;
          weights[t] = std::exp(weights[t] - penalty);
          total += weights[t];
        }
        for (std::size_t t = 0; t < weights.size(); ++t) {
          output.push_back(static_cast<TokenId>(t));
          extend(output, probability * weights[t] / total);
          output.pop_back();
        }
      };
  std::vector<TokenId> output;
  extend(output, 1.0);
  return exact;
}

TEST(EngineDistribution, IsThatWithoutDrafts) {
  for (const Setting& setting :
       {Setting{}, Setting{.method = AcceptMethod::kBlock},
        Setting{.is_greedy_draft = true, .presence_penalty = 0.8F},
        Setting{
            .method = AcceptMethod::kBlock, .has_confidence = false, .presence_penalty = -0.5F}}) {
    FakeRunner runner(runner_of(setting));
    const EngineOptions options = options_of(setting);
    validate_options(options, runner);
    EngineCore core(options, runner, nullptr);
    OutputCounts counts;
    std::vector<std::shared_ptr<Collected>> outputs;
    for (std::int64_t i = 0; i < kRuns; ++i) {
      GenerationRequest request;
      request.prompt = kPrompt;
      request.sampling = params_of(setting);
      request.sampling.seed = i;
      outputs.push_back(std::make_shared<Collected>());
      collect(request, outputs.back());
      core.submit(static_cast<RequestId>(i) + 1, std::move(request), Clock::now());
      if (i % 3 == 0) core.step();
    }
    while (core.has_work()) core.step();
    for (const auto& collected : outputs) {
      const std::vector<TokenId>& tokens = collected->choices[0].tokens;
      ASSERT_GE(tokens.size(), std::size_t{kLength});
      ++counts[{tokens.begin(), tokens.begin() + kLength}];
    }
    // About four a run but in the third setting, whose drafts hardly pay: 7,052. Costs are given,
    // so that no clock has a say: the number is the same each time, and the planner's alone.
    EXPECT_GT(core.stats().accepted_tokens, kRuns / 5);
    EXPECT_GT(core.stats().draft_tokens, core.stats().accepted_tokens);
    EXPECT_LT(g_deviation(counts, exact_probabilities(setting), kRuns), kLimit)
        << static_cast<int>(setting.method) << ", penalty " << setting.presence_penalty;
  }
}

}  // namespace
}  // namespace winnow::testing
