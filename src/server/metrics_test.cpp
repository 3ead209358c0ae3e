// Figures that disagree with each other, as a snapshot in the middle of something may: counters
// never fall and nothing throws (I5 of the field list).
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <string>

namespace winnow::server {
namespace {

bool has(const std::string& text, const std::string& name, int value) {
  const std::string line = name + "{engine=\"0\",model_name=\"m\"} " + std::to_string(value) + "\n";
  return text.find(line) != std::string::npos;
}

MetricsOptions make_options() {
  MetricsOptions options;
  options.model_name = "m";
  options.max_model_len = 100;
  return options;
}

TEST(Metrics, CountersNeverFallWhateverTheEngineSays) {
  ServerMetrics metrics(make_options());
  EngineStats stats;
  stats.prompt_tokens = 10;
  stats.cached_tokens = 4;
  metrics.on_submitted();
  metrics.on_submitted();
  metrics.on_request_done({}, {});
  std::string text = metrics.text(stats);
  EXPECT_TRUE(has(text, "vllm:prompt_tokens_total", 10)) << text;
  EXPECT_TRUE(has(text, "winnow:requests_submitted_total", 2)) << text;
  EXPECT_TRUE(has(text, "winnow:requests_ended_total", 1)) << text;

  stats.prompt_tokens = 7;  // fewer than before, and fewer than were found in the cache
  stats.cached_tokens = 9;
  stats.generation_tokens = -5;
  stats.num_blocks = 0;
  stats.num_free_blocks = 1;
  EXPECT_NO_THROW(text = metrics.text(stats));
  EXPECT_TRUE(has(text, "vllm:prompt_tokens_total", 10)) << text;
  EXPECT_TRUE(has(text, "vllm:prompt_tokens_cached_total", 9)) << text;
  EXPECT_TRUE(has(text, "vllm:generation_tokens_total", 0)) << text;
  EXPECT_TRUE(has(text, "vllm:kv_cache_usage_perc", 0)) << text;
}

TEST(Metrics, TimesThatRunBackwardsCountAsNone) {
  ServerMetrics metrics(make_options());
  RequestStats stats;
  stats.arrival = Clock::now();
  stats.first_scheduled = stats.arrival - std::chrono::seconds(1);
  stats.first_token = stats.arrival - std::chrono::seconds(2);
  stats.finished = stats.arrival - std::chrono::seconds(3);
  stats.num_prompt_tokens = 3;
  stats.num_cached_tokens = 5;
  EXPECT_NO_THROW(metrics.on_request_done(stats, {.n = 1, .max_tokens = 5, .max_generated = 2}));
  EXPECT_NO_THROW(metrics.on_inter_token_latency(-1));
  const std::string text = metrics.text({});
  EXPECT_TRUE(has(text, "vllm:e2e_request_latency_seconds_sum", 0)) << text;
  EXPECT_TRUE(has(text, "vllm:request_prefill_kv_computed_tokens_sum", 0)) << text;
}

}  // namespace
}  // namespace winnow::server
