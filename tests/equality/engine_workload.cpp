#include "engine_workload.h"

#include <gtest/gtest.h>

#include <random>

namespace winnow::testing {
namespace {

SamplingParams mixed_params(std::mt19937_64& random, std::int32_t vocab_size) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int32_t>(random() % n); };
  SamplingParams params;
  params.seed = static_cast<std::int64_t>(random());
  params.ignore_eos = true;
  if (below(3) == 0) params.temperature = 0.0F;
  if (below(3) == 0) params.temperature = 0.7F;
  if (below(2) == 0) params.top_k = 1 + below(20);
  if (below(2) == 0) params.top_p = 0.5F + 0.1F * static_cast<float>(below(5));
  if (below(4) == 0) params.min_p = 0.05F;
  if (below(2) == 0) {  // else the next token is all that is wanted of a row
    if (below(3) == 0) params.repetition_penalty = 1.3F;
    if (below(3) == 0) params.presence_penalty = 0.8F;
    if (below(3) == 0) params.frequency_penalty = -0.4F;
    if (below(4) == 0) params.logit_bias = {{below(static_cast<std::uint64_t>(vocab_size)), 3.0F}};
    if (below(3) == 0) params.logprobs = below(6);
    if (below(5) == 0) params.processed_logprobs = true;
    if (below(5) == 0) params.logprob_token_ids = {0, vocab_size - 1};
  }
  if (below(4) == 0) params.prompt_logprobs = below(3);
  if (below(5) == 0) params.n = 2 + below(3);
  if (below(3) == 0) {
    const auto token = [&] { return below(static_cast<std::uint64_t>(vocab_size)); };
    params.bad_words = {{token()}, {token()}, {token(), token()}};
  }
  return params;
}

}  // namespace

Workload mixed_workload(std::uint64_t seed, std::int32_t num_requests, std::int32_t max_prompt,
                        std::int32_t max_tokens, std::int32_t vocab_size) {
  std::mt19937_64 random(seed);
  std::mt19937_64 selections(~seed);  // asking for them changes nothing else of a workload
  Workload workload;
  for (std::int32_t i = 0; i < num_requests; ++i) {
    GenerationRequest request;
    const auto length =
        1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(max_prompt));
    request.prompt = make_prompt(random(), length, 0, vocab_size - 4);
    if (i > 0 && random() % 2 == 0) {  // begin like an earlier one
      const auto& other = workload.requests[random() % static_cast<std::uint64_t>(i)].prompt;
      const std::size_t shared = random() % (std::min(other.size(), request.prompt.size()) + 1);
      std::copy_n(other.begin(), shared, request.prompt.begin());
    }
    request.sampling = mixed_params(random, vocab_size);
    request.sampling.max_tokens =
        1 + static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(max_tokens));
    request.sampling.min_tokens = request.sampling.max_tokens / 2;
    if (random() % 3 == 0) {
      request.sampling.ignore_eos = false;
      request.sampling.stop_token_ids = {5};
    }
    if (selections() % 2 == 0) {
      request.num_block_selections = static_cast<std::int32_t>(selections() % 24);
    }
    request.priority = static_cast<std::int32_t>(random() % 3);
    request.fairness_key = std::string(1, static_cast<char>('a' + random() % 3));
    workload.requests.push_back(std::move(request));
  }
  return workload;
}

Results run_alone(const Workload& workload, const std::function<EngineCore&()>& core_of) {
  Results results;
  for (const GenerationRequest& request : workload.requests) {
    Workload one;
    one.requests.push_back(request);
    results.push_back(run_together(one, core_of()).front());
  }
  return results;
}

Results run_together(const Workload& workload, EngineCore& core, const RunOptions& options) {
  Results results;
  RequestId id = 1;
  std::int64_t step = 0;
  const auto run_step = [&] {
    if (options.before_step) options.before_step(step);
    core.step();
    ++step;
  };
  for (const GenerationRequest& request : workload.requests) {
    auto collected = std::make_shared<Collected>();
    GenerationRequest copy = request;
    collect(copy, collected);
    core.submit(id++, std::move(copy), Clock::now());
    results.push_back(std::move(collected));
    for (std::int32_t i = 0; i < options.steps_between; ++i) run_step();
  }
  while (core.has_work()) run_step();
  core.check_integrity();
  EXPECT_EQ(core.stats().num_free_blocks, core.stats().num_blocks);
  return results;
}

void expect_equal(const Results& expected, const Results& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size()) << what;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i]->check(), "") << what << ", request " << i;
    EXPECT_EQ(first_difference(*expected[i], *actual[i]), "") << what << ", request " << i;
  }
}

}  // namespace winnow::testing
