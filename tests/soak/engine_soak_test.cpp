// Random mixed requests, cancels, deadlines, NaN logits and failing steps on tiny pools: every
// choice gets exactly one final update, every block comes back, counters add up, and whoever was
// not disturbed said what it says alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_core.h"
#include "engine/testing/collector.h"
#include "engine/testing/fake_runner.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kVocab = 64;
constexpr TokenId kEos = 63;
constexpr TokenId kFails = 62;  // a step with it throws
constexpr TokenId kNaN = 61;    // logits after it are NaN

struct Conditions {
  std::uint64_t seed;
  std::int32_t num_blocks, block_tokens, max_num_seqs, budget, num_requests;
  bool has_cache, has_failures;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  std::int32_t num_drafts = 0;
  bool is_adaptive = false;  // with times that are measured here
};

EngineOptions options_of(const Conditions& c) {
  EngineOptions options;
  options.max_model_len = c.num_blocks * c.block_tokens;
  options.max_num_seqs = c.max_num_seqs;
  options.max_num_batched_tokens = c.budget;
  options.enable_prefix_caching = c.has_cache;
  options.policy = c.policy;
  options.long_prefill_token_threshold = c.seed % 3 == 0 ? c.budget / 2 + 1 : 0;
  options.fair_admission = c.seed % 2 == 0;
  options.max_adapters = static_cast<std::int32_t>(1 + c.seed % 3);
  options.stop_token_ids = {kEos};
  options.speculation.num_drafts = c.num_drafts;
  options.speculation.method = AcceptMethod::kCoupled;
  options.speculation.is_adaptive = c.is_adaptive;
  return options;
}

GenerationRequest random_request(std::mt19937_64& random, const Conditions& c) {
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(n));
  };
  const std::int32_t slots = std::min(c.num_blocks * c.block_tokens, 120);
  GenerationRequest request;
  const std::int32_t length = 1 + below(below(2) == 0 ? slots / 4 : slots - 1);
  request.prompt = make_prompt(random() % 8, length, 0, 60);  // few beginnings: many hits
  if (below(3) == 0) request.prompt.back() = below(60);
  SamplingParams& p = request.sampling;
  p.max_tokens = std::min(below(30), slots - length);
  p.min_tokens = p.max_tokens > 0 ? below(p.max_tokens) : 0;
  p.seed = static_cast<std::int64_t>(random());
  p.logit_bias = {{kFails, -100.0F}, {kNaN, -100.0F}};
  if (below(4) == 0) p.temperature = 0.0F;
  if (below(3) == 0) p.top_k = 1 + below(30);
  if (below(3) == 0) p.top_p = 0.9F;
  if (below(4) == 0) p.frequency_penalty = 0.5F;
  if (below(4) == 0) p.repetition_penalty = 1.2F;
  if (below(5) == 0) p.logprobs = below(4);
  if (below(8) == 0) p.prompt_logprobs = below(3);
  if (below(6) == 0) p.n = 1 + below(6);
  if (below(4) == 0) p.stop_token_ids = {below(60)};
  if (c.has_failures && below(60) == 0) request.prompt.back() = kFails;
  if (c.has_failures && below(30) == 0) request.prompt.back() = kNaN;
  request.priority = below(3);
  request.fairness_key = std::string(1, static_cast<char>('a' + below(4)));
  if (below(6) == 0) request.cache_salt = "salt";
  if (below(40) == 0) request.deadline = Clock::now() + std::chrono::microseconds(below(3000));
  if (below(3) == 0) {
    static const auto kAdapters = std::to_array<std::shared_ptr<const ModelAdapter>>(
        {std::make_shared<ToyAdapter>(1), std::make_shared<ToyAdapter>(2),
         std::make_shared<ToyAdapter>(3), std::make_shared<ToyAdapter>(4)});
    request.adapter = kAdapters[static_cast<std::size_t>(below(4))];
    request.adapter_name = std::string(1, static_cast<char>('a' + request.adapter->fingerprint()));
  }
  return request;
}

/// What the request says on a machine of its own.
std::shared_ptr<Collected> run_alone(const GenerationRequest& request, const Conditions& c) {
  FakeRunner runner(
      {.vocab_size = kVocab, .block_tokens = c.block_tokens, .num_blocks = c.num_blocks * 8});
  EngineOptions options = options_of(c);
  options.enable_prefix_caching = false;
  options.speculation = {};
  EngineCore core(options, runner, nullptr);
  auto collected = std::make_shared<Collected>();
  GenerationRequest copy = request;
  copy.deadline.reset();
  collect(copy, collected);
  core.submit(1, std::move(copy), Clock::now());
  while (core.has_work()) core.step();
  return collected;
}

bool is_undisturbed(const Collected& collected) {
  return std::ranges::all_of(collected.choices, [](const ChoiceOutput& choice) {
    return choice.finish_reason == FinishReason::kLength ||
           (choice.finish_reason == FinishReason::kStop && !choice.tokens.empty());
  });
}

/// Not the text but the server's own sums.
void expect_counters_add_up(const EngineStats& stats,
                            const std::vector<std::shared_ptr<Collected>>& outputs) {
  std::int64_t cached = 0, prompt = 0, generated = 0, recomputed = 0, preemptions = 0;
  for (const auto& out : outputs) {
    if (out->stats.first_scheduled != Clock::time_point{}) prompt += out->stats.num_prompt_tokens;
    cached += out->stats.num_cached_tokens;
    generated += out->stats.num_output_tokens;
    recomputed += out->stats.num_recomputed_tokens;
    preemptions += out->stats.num_preemptions;
    EXPECT_LT(out->stats.num_cached_tokens, out->stats.num_prompt_tokens);
  }
  EXPECT_EQ(stats.prompt_tokens, prompt);
  EXPECT_EQ(stats.cached_tokens, cached);
  EXPECT_EQ(stats.prefix_hits, cached);
  EXPECT_LE(stats.prefix_queries, prompt);
  EXPECT_EQ(stats.generation_tokens, generated);
  EXPECT_EQ(stats.recomputed_tokens, recomputed);
  EXPECT_EQ(stats.num_preemptions, preemptions);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
}

class EngineSoak : public ::testing::TestWithParam<Conditions> {};

TEST_P(EngineSoak, NothingIsLostAndUndisturbedRequestsSayWhatTheySayAlone) {
  const Conditions c = GetParam();
  std::mt19937_64 random(c.seed);
  FakeRunner runner({.vocab_size = kVocab,
                     .block_tokens = c.block_tokens,
                     .num_blocks = c.num_blocks,
                     .max_drafts = c.num_drafts,
                     .has_confidence = c.seed % 2 == 0});
  if (c.num_drafts == 0) runner.failing_token = kFails;  // a draft of it would fail, too
  runner.nan_token = kNaN;
  EngineCore core(options_of(c), runner, nullptr);
  core.prepare();
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Collected>> outputs;
  std::vector<bool> was_stopped;
  const auto one_of_them = [&] { return random() % requests.size(); };
  while (std::ssize(requests) < c.num_requests || core.has_work()) {
    const std::uint64_t burst = std::ssize(requests) < c.num_requests ? random() % 4 : 0;
    for (std::uint64_t i = 0; i < burst; ++i) {
      requests.push_back(random_request(random, c));
      outputs.push_back(std::make_shared<Collected>());
      was_stopped.push_back(false);
      GenerationRequest copy = requests.back();
      validate_request(copy, options_of(c), runner);
      collect(copy, outputs.back());
      core.submit(requests.size(), std::move(copy), Clock::now());
    }
    if (!requests.empty() && random() % 12 == 0) core.abort(1 + one_of_them());
    if (!requests.empty() && random() % 12 == 0) {
      const std::size_t which = one_of_them();
      was_stopped[which] = was_stopped[which] || !outputs[which]->is_done();
      core.stop_choice(1 + which, static_cast<std::int32_t>(random() % 6));
    }
    if (random() % 300 == 0) (void)core.reset_prefix_cache(random() % 2 == 0);
    const auto num_steps = random() % 4;
    for (std::uint64_t i = 0; i < num_steps; ++i) core.step();
    if (random() % 16 == 0) core.check_integrity();
  }
  core.check_integrity();
  EXPECT_EQ(runner.num_foreign_slots, 0);
  EXPECT_LE(runner.max_batch_adapters, options_of(c).max_adapters);
  EXPECT_TRUE(core.stats().adapters.empty());
  if (!c.is_adaptive) {
    EXPECT_EQ(runner.num_blind_slots, 0);
    EXPECT_EQ(core.stats().accepted_tokens > 0, c.num_drafts > 0);
  }
  expect_counters_add_up(core.stats(), outputs);
  std::int64_t num_compared = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    ASSERT_EQ(outputs[i]->check(), "") << "request " << i;
    if (was_stopped[i] || !is_undisturbed(*outputs[i])) continue;
    ++num_compared;
    ASSERT_EQ(first_difference(*run_alone(requests[i], c), *outputs[i]), "") << "request " << i;
  }
  EXPECT_GT(num_compared, c.num_requests / 4);
}

std::vector<Conditions> all_conditions() {
  std::vector<Conditions> all;
  std::uint64_t seed = 1;
  for (const std::int32_t num_blocks : {1, 5, 16, 60, 400}) {
    for (const std::int32_t block_tokens : {4, 16}) {
      for (const bool has_cache : {true, false}) {
        for (const SchedulingPolicy policy :
             {SchedulingPolicy::kFcfs, SchedulingPolicy::kPriority}) {
          const auto budget = static_cast<std::int32_t>(8 + seed * 7 % 60);
          all.push_back({.seed = seed,
                         .num_blocks = num_blocks,
                         .block_tokens = num_blocks == 1 ? 48 : block_tokens,
                         .max_num_seqs = static_cast<std::int32_t>(1 + seed % 8),
                         .budget = budget,
                         .num_requests = 400,
                         .has_cache = has_cache,
                         .has_failures = seed % 4 != 0,
                         .policy = policy});
          all.push_back(Conditions(all.back()));
          all.back().num_drafts = 5;
          all.push_back(Conditions(all.back()));
          all.back().is_adaptive = true;
          ++seed;
        }
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Random, EngineSoak, ::testing::ValuesIn(all_conditions()),
                         [](const auto& param_info) {
                           const Conditions& c = param_info.param;
                           return fmt::format("seed{}{}{}", c.seed,
                                              c.num_drafts > 0 ? "_drafts" : "",
                                              c.is_adaptive ? "_adaptive" : "");
                         });

// The same through the mailbox: clients on their own threads that submit, cancel and hang up.
TEST(EngineThreadSoak, ClientsComeAndGo) {
  const Conditions c{.seed = 2,
                     .num_blocks = 40,
                     .block_tokens = 4,
                     .max_num_seqs = 8,
                     .budget = 40,
                     .num_requests = 0,
                     .has_cache = true,
                     .has_failures = true};
  constexpr std::uint64_t kClients = 4;
  constexpr int kRequests = 500;
  FakeRunner runner(
      {.vocab_size = kVocab, .block_tokens = c.block_tokens, .num_blocks = c.num_blocks});
  runner.failing_token = kFails;
  runner.nan_token = kNaN;
  EngineOptions options = options_of(c);
  options.max_num_queued_requests = 64;
  std::vector<std::shared_ptr<Collected>> outputs;
  std::mutex mutex;
  std::atomic<std::int64_t> num_refused = 0;
  EngineStats stats;
  {
    Engine engine(options, runner, nullptr);
    std::vector<std::thread> clients;
    for (std::uint64_t client = 0; client < kClients; ++client) {
      clients.emplace_back([&, client] {
        std::mt19937_64 random(client);
        for (int i = 0; i < kRequests; ++i) {
          GenerationRequest request = random_request(random, c);
          auto collected = std::make_shared<Collected>();
          collect(request, collected);
          const Engine::Submitted submitted = engine.submit(std::move(request));
          if (submitted.refusal != SubmitRefusal::kNone) {
            EXPECT_EQ(submitted.refusal, SubmitRefusal::kQueueFullRequests);
            ++num_refused;
            std::this_thread::yield();
            continue;
          }
          {
            const std::lock_guard lock(mutex);
            outputs.push_back(std::move(collected));
          }
          if (random() % 5 == 0) engine.abort(submitted.id - random() % 3);
          if (random() % 5 == 0) engine.stop_choice(submitted.id, 0);
          if (random() % 50 == 0) (void)engine.reset_prefix_cache(random() % 2 == 0);
          const EngineStats now = engine.stats();
          EXPECT_LE(now.cached_tokens, now.prompt_tokens);
          EXPECT_LE(now.num_free_blocks, now.num_blocks);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    engine.drain(60.0);
    stats = engine.stats();
  }
  for (const auto& out : outputs) EXPECT_EQ(out->check(), "");
  expect_counters_add_up(stats, outputs);
  EXPECT_EQ(std::ssize(outputs) + num_refused, static_cast<std::int64_t>(kClients) * kRequests);
}

}  // namespace
}  // namespace winnow::testing
