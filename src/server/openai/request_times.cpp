#include "server/openai/request_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace winnow::server {
namespace {

double milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double, std::milli>(to - from).count());
}

/// In milliseconds; the parts add up to the whole.
struct Times {
  explicit Times(const RequestStats& stats)
      : queue(milliseconds_between(stats.arrival, stats.first_scheduled)),
        prefill(milliseconds_between(stats.first_scheduled, stats.first_token)),
        decode(milliseconds_between(stats.first_token, stats.finished)) {}
  double first_token() const { return queue + prefill; }
  double whole() const { return queue + prefill + decode; }

  double queue, prefill, decode;
};

bool has_generated(const RequestStats& stats) { return stats.first_token != Clock::time_point{}; }

}  // namespace

Json metrics_json(const RequestStats& stats) {
  if (!has_generated(stats)) return nullptr;
  const Times times(stats);
  const int gaps = stats.num_output_tokens - 1;
  Json out;
  out["time_to_first_token_ms"] = times.prefill;  // from scheduling, as vLLM has it
  out["generation_time_ms"] = times.decode;
  out["queue_time_ms"] = times.queue;
  out["mean_itl_ms"] = gaps > 0 ? Json(times.decode / gaps) : Json();
  out["tokens_per_second"] =
      gaps > 0 && times.decode > 0 ? Json(gaps / times.decode * 1000) : Json();
  Json& attributes = out["attributes"];
  attributes["gen_ai.latency.time_in_queue"] = times.queue / 1e3;
  attributes["gen_ai.latency.time_in_model_prefill"] = times.prefill / 1e3;
  attributes["gen_ai.latency.time_in_model_decode"] = times.decode / 1e3;
  attributes["gen_ai.latency.time_to_first_token"] = times.first_token() / 1e3;
  attributes["gen_ai.latency.e2e"] = times.whole() / 1e3;
  attributes["gen_ai.usage.prompt_tokens"] = stats.num_prompt_tokens;
  attributes["gen_ai.usage.completion_tokens"] = stats.num_output_tokens;
  return out;
}

std::string server_timing(const RequestStats& stats) {
  if (!has_generated(stats)) return {};
  const Times times(stats);
  return fmt::format("queue;dur={:.3f}, prefill;dur={:.3f}, decode;dur={:.3f}, total;dur={:.3f}",
                     times.queue, times.prefill, times.decode, times.whole());
}

void add_log_fields(const RequestStats& stats, std::vector<LogField>& fields) {
  fields.push_back({"cached_tokens", std::int64_t{stats.num_cached_tokens}});
  if (!has_generated(stats)) return;
  const Times times(stats);
  fields.push_back({"queue_ms", times.queue});
  fields.push_back({"prefill_ms", times.prefill});
  fields.push_back({"ttft_ms", times.first_token()});
  fields.push_back({"decode_ms", times.decode});
}

}  // namespace winnow::server
