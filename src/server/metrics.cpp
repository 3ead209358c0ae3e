#include "server/metrics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <sstream>

namespace winnow::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;
using Labels = std::map<std::string, std::string>;

const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
// The public list starts at .01; the finer ones below it tell fast decoding apart.
const Buckets kTokenBuckets = {.001, .002, .003, .005, .0075, .01, .025, .05, .075, .1, .15, .2,
                               .3,   .4,   .5,   .75,  1,     2.5, 5,    7.5, 10,   20, 40,  80};
const Buckets kLatencyBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kStepTokenBuckets = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

/// 1, 2, 5, 10, 20, 50, … up to the model's length.
Buckets length_buckets(std::int32_t max_model_len) {
  Buckets out;
  for (double decade = 1;; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      if (step * decade > max_model_len) return out.empty() ? Buckets{1} : out;
      out.push_back(step * decade);
    }
  }
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

/// A counter that follows a total kept elsewhere; a total that shrinks is not followed.
void follow(Counter& counter, std::int64_t total) {
  const double more = static_cast<double>(total) - counter.Value();
  if (more > 0) counter.Increment(more);
}

}  // namespace

struct ServerMetrics::Impl {
  explicit Impl(const MetricsOptions& options)
      : labels{{"model_name", options.model_name}, {"engine", "0"}},
        lengths(length_buckets(options.max_model_len)) {
    Labels cache = labels;
    cache.insert(options.cache_config.begin(), options.cache_config.end());
    prometheus::BuildGauge()
        .Name("vllm:cache_config_info")
        .Help("Settings of the KV cache, as labels.")
        .Register(registry)
        .Add(cache)
        .Set(1);
    if (options.num_speculative_tokens > 0) add_drafts(options);
    if (options.max_adapters > 0) add_adapters(options);
    for (const char* reason : {"stop", "length", "abort", "error"}) {
      finished[reason] = &finished_family.Add(with("finished_reason", reason));
    }
    for (const char* reason : {"max_num_queued_reqs", "max_num_queued_tokens", "draining"}) {
      rejections[reason] = &rejection_family.Add(with("reason", reason));
    }
  }

  void add_drafts(const MetricsOptions& options) {
    num_drafts = &counter("vllm:spec_decode_num_drafts_total", "Blocks of drafts verified.");
    draft_tokens = &counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens verified.");
    accepted_drafts =
        &counter("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.");
    acceptance_length = &gauge("winnow:spec_decode_mean_acceptance_length",
                               "Tokens of a step with drafts, the one after them included.");
    prometheus::Family<Counter>& by_position =
        counter_family("vllm:spec_decode_num_accepted_tokens_per_pos_total",
                       "Drafted tokens accepted, by place in their block.");
    for (std::int32_t i = 0; i < options.num_speculative_tokens; ++i) {
      accepted_by_position.push_back(&by_position.Add(with("position", std::to_string(i))));
    }
    if (!options.is_acceptance_synthetic) return;
    gauge("winnow:spec_decode_synthetic_acceptance",
          "1: drafts are accepted by decree, the text is meaningless.")
        .Set(1);
  }

  void follow_drafts(const EngineStats& stats) {
    if (num_drafts == nullptr) return;
    follow(*num_drafts, stats.num_drafts);
    follow(*draft_tokens, stats.draft_tokens);
    follow(*accepted_drafts, stats.accepted_tokens);
    for (std::size_t i = 0; i < accepted_by_position.size(); ++i) {
      follow(*accepted_by_position[i], stats.accepted_by_position[i]);
    }
    if (stats.num_drafts == 0) return;
    acceptance_length->Set(1.0 + static_cast<double>(stats.accepted_tokens) /
                                     static_cast<double>(stats.num_drafts));
  }

  void add_adapters(const MetricsOptions& options) {
    max_adapters = std::to_string(options.max_adapters);
    adapter_requests = &prometheus::BuildGauge()
                            .Name("vllm:lora_requests_info")
                            .Help("Adapters with requests, as labels; the time they were read.")
                            .Register(registry);
    num_adapters = &gauge("winnow:lora_adapters", "Adapters that requests can name.");
    adapter_bytes = &gauge("winnow:lora_adapter_bytes", "Memory of these adapters, in bytes.");
  }

  /// The state is in the labels: what was said before is taken back.
  void follow_adapters(const EngineStats& stats, const AdapterTotals& totals) {
    if (adapter_requests == nullptr) return;
    num_adapters->Set(static_cast<double>(totals.num_adapters));
    adapter_bytes->Set(static_cast<double>(totals.num_bytes));
    std::vector<std::string> running_names, waiting_names;
    for (const auto& [name, load] : stats.adapters) {
      if (load.num_running > 0) running_names.push_back(name);
      if (load.num_waiting > 0) waiting_names.push_back(name);
    }
    Labels state = labels;
    state["max_lora"] = max_adapters;
    state["running_lora_adapters"] = fmt::format("{}", fmt::join(running_names, ","));
    state["waiting_lora_adapters"] = fmt::format("{}", fmt::join(waiting_names, ","));
    if (adapter_state != nullptr) adapter_requests->Remove(adapter_state);
    adapter_state = &adapter_requests->Add(state);
    adapter_state->SetToCurrentTime();
  }

  Labels with(const std::string& name, const std::string& value) const {
    Labels out = labels;
    out[name] = value;
    return out;
  }
  Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  Counter& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }
  prometheus::Family<Counter>& counter_family(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }

  Labels labels;
  Buckets lengths;
  prometheus::Registry registry;
  std::mutex follow_mutex;  // two scrapes at once would add the same difference twice

  Gauge& running = gauge("vllm:num_requests_running", "Sequences in the running batch.");
  Gauge& waiting = gauge("vllm:num_requests_waiting", "Sequences waiting to be scheduled.");
  Gauge& waiting_for_capacity = prometheus::BuildGauge()
                                    .Name("vllm:num_requests_waiting_by_reason")
                                    .Help("Sequences waiting, by reason.")
                                    .Register(registry)
                                    .Add(with("reason", "capacity"));
  Gauge& cache_usage = gauge("vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1.");
  Gauge& healthy = gauge("winnow:engine_healthy", "1 while the engine can serve.");
  Gauge& token_cache_bytes =
      gauge("winnow:token_cache_bytes", "Memory of the cache of token ids, in bytes.");
  Gauge& free_blocks = gauge("winnow:kv_blocks_free", "KV blocks nobody uses, cached or not.");

  Counter& preemptions = counter("vllm:num_preemptions_total", "Sequences preempted.");
  Counter& prompt_tokens = counter("vllm:prompt_tokens_total", "Prompt tokens admitted.");
  Counter& generation_tokens = counter("vllm:generation_tokens_total", "Tokens generated.");
  Counter& cached_tokens =
      counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in the prefix cache.");
  Counter& recomputed_tokens =
      counter("winnow:recomputed_tokens_total", "Tokens computed again after preemption.");
  Counter& prefix_queries =
      counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.");
  Counter& prefix_hits =
      counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.");
  Counter& token_cache_queries =
      counter("winnow:token_cache_query_bytes_total", "Prompt text looked up in the token cache.");
  Counter& token_cache_hits =
      counter("winnow:token_cache_hit_bytes_total", "Prompt text whose token ids were known.");
  Counter& corrupted = counter("vllm:corrupted_requests_total", "Requests with NaN logits.");
  Counter& masks_ahead =
      counter("winnow:grammar_masks_ahead_total", "Grammar masks filled while the model worked.");
  Counter& late_masks =
      counter("winnow:grammar_masks_late_total", "Grammar masks that the draw had to wait for.");
  Counter& steps = counter("winnow:steps_total", "Engine steps.");
  Counter& failed_steps = counter("winnow:failed_steps_total", "Engine steps that failed.");
  Counter& submitted =
      counter("winnow:requests_submitted_total", "Requests that the engine has taken in.");
  Counter& ended = counter("winnow:requests_ended_total", "Those that have ended in any way.");
  prometheus::Family<Counter>& source_family = counter_family(
      "vllm:prompt_tokens_by_source_total", "Prompt tokens by where they came from.");
  Counter& from_compute = source_family.Add(with("source", "local_compute"));
  Counter& from_cache = source_family.Add(with("source", "local_cache_hit"));
  Counter& from_transfer = source_family.Add(with("source", "external_kv_transfer"));
  prometheus::Family<Counter>& finished_family =
      counter_family("vllm:request_success_total", "Finished sequences by reason.");
  prometheus::Family<Counter>& rejection_family =
      counter_family("vllm:admission_rejections_total", "Requests refused at admission.");
  prometheus::Family<Counter>& http_family =
      counter_family("http_requests_total", "HTTP responses by method, handler and status.");
  std::map<std::string, Counter*, std::less<>> finished, rejections;
  Counter *num_drafts = nullptr, *draft_tokens = nullptr, *accepted_drafts = nullptr;
  std::vector<Counter*> accepted_by_position;
  Gauge* acceptance_length = nullptr;
  std::string max_adapters;
  prometheus::Family<Gauge>* adapter_requests = nullptr;  // null: there are no adapters
  Gauge *adapter_state = nullptr, *num_adapters = nullptr, *adapter_bytes = nullptr;

  Histogram& first_token = histogram("vllm:time_to_first_token_seconds",
                                     "From arrival to the first token.", kFirstTokenBuckets);
  Histogram& inter_token = histogram("vllm:inter_token_latency_seconds",
                                     "Between two tokens of a sequence.", kTokenBuckets);
  Histogram& per_output_token =
      histogram("vllm:request_time_per_output_token_seconds",
                "Mean time per output token after the first.", kTokenBuckets);
  Histogram& end_to_end = histogram("vllm:e2e_request_latency_seconds",
                                    "From arrival to the last token.", kLatencyBuckets);
  Histogram& queue_time = histogram("vllm:request_queue_time_seconds",
                                    "From arrival to the first schedule.", kLatencyBuckets);
  Histogram& inference_time = histogram("vllm:request_inference_time_seconds",
                                        "From the first schedule to the end.", kLatencyBuckets);
  Histogram& prefill_time =
      histogram("vllm:request_prefill_time_seconds", "From the first schedule to the first token.",
                kLatencyBuckets);
  Histogram& decode_time = histogram("vllm:request_decode_time_seconds",
                                     "From the first token to the last.", kLatencyBuckets);
  Histogram& prompt_length =
      histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths);
  Histogram& computed_length = histogram("vllm:request_prefill_kv_computed_tokens",
                                         "Prompt tokens of a request that were computed.", lengths);
  Histogram& generation_length =
      histogram("vllm:request_generation_tokens", "Generated tokens of a request.", lengths);
  Histogram& longest_choice = histogram("vllm:request_max_num_generation_tokens",
                                        "Generated tokens of a request's longest choice.", lengths);
  Histogram& params_n =
      histogram("vllm:request_params_n", "The n of a request.", Buckets{1, 2, 5, 10, 20});
  Histogram& params_max_tokens =
      histogram("vllm:request_params_max_tokens", "The max_tokens of a request.", lengths);
  Histogram& step_tokens =
      histogram("vllm:iteration_tokens_total", "Tokens of an engine step.", kStepTokenBuckets);
  Histogram& step_seconds =
      histogram("winnow:step_seconds", "Time of an engine step.", kTokenBuckets);
};

ServerMetrics::ServerMetrics(const MetricsOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::on_step(std::int32_t num_tokens, std::int32_t, double seconds) {
  impl_->step_tokens.Observe(num_tokens);
  impl_->step_seconds.Observe(seconds);
}

void ServerMetrics::on_inter_token_latency(double seconds) {
  impl_->inter_token.Observe(std::max(0.0, seconds));
}

void ServerMetrics::on_submitted() { impl_->submitted.Increment(); }

void ServerMetrics::on_choice_finished(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return impl_->finished["stop"]->Increment();
    case FinishReason::kLength:
      return impl_->finished["length"]->Increment();
    case FinishReason::kAbort:
      return impl_->finished["abort"]->Increment();
    case FinishReason::kError:
      return impl_->finished["error"]->Increment();
    case FinishReason::kNone:
      return;
  }
}

void ServerMetrics::on_request_done(const RequestStats& stats, const RequestShape& shape) {
  Impl& m = *impl_;
  const Clock::time_point epoch{};
  m.ended.Increment();
  m.end_to_end.Observe(seconds_between(stats.arrival, stats.finished));
  m.prompt_length.Observe(stats.num_prompt_tokens);
  m.generation_length.Observe(stats.num_output_tokens);
  m.longest_choice.Observe(shape.max_generated);
  m.params_n.Observe(shape.n);
  m.params_max_tokens.Observe(shape.max_tokens);
  if (stats.first_scheduled == epoch) return;
  m.queue_time.Observe(seconds_between(stats.arrival, stats.first_scheduled));
  m.inference_time.Observe(seconds_between(stats.first_scheduled, stats.finished));
  m.computed_length.Observe(std::max(0, stats.num_prompt_tokens - stats.num_cached_tokens));
  if (stats.first_token == epoch) return;
  m.first_token.Observe(seconds_between(stats.arrival, stats.first_token));
  m.prefill_time.Observe(seconds_between(stats.first_scheduled, stats.first_token));
  m.decode_time.Observe(seconds_between(stats.first_token, stats.finished));
  if (shape.max_generated > 1) {
    m.per_output_token.Observe(seconds_between(stats.first_token, stats.finished) /
                               (shape.max_generated - 1));
  }
}

void ServerMetrics::on_rejected(SubmitRefusal refusal) {
  switch (refusal) {
    case SubmitRefusal::kQueueFullRequests:
      return impl_->rejections["max_num_queued_reqs"]->Increment();
    case SubmitRefusal::kQueueFullTokens:
      return impl_->rejections["max_num_queued_tokens"]->Increment();
    case SubmitRefusal::kDraining:
      return impl_->rejections["draining"]->Increment();
    case SubmitRefusal::kBroken:
    case SubmitRefusal::kNone:
      return;
  }
}

void ServerMetrics::on_http_response(std::string_view method, std::string_view route, int status) {
  impl_->http_family
      .Add({{"method", std::string(method)},
            {"handler", std::string(route)},
            {"status", std::to_string(status)}})
      .Increment();
}

std::string ServerMetrics::text(const EngineStats& stats, const TokenCacheStats& tokens,
                                const AdapterTotals& adapters) {
  Impl& m = *impl_;
  m.running.Set(static_cast<double>(stats.num_running));
  m.waiting.Set(static_cast<double>(stats.num_waiting));
  m.waiting_for_capacity.Set(static_cast<double>(stats.num_waiting));
  m.healthy.Set(stats.is_broken ? 0 : 1);
  m.free_blocks.Set(static_cast<double>(stats.num_free_blocks));
  const double used = static_cast<double>(stats.num_blocks - stats.num_free_blocks);
  m.cache_usage.Set(stats.num_blocks > 0 ? used / static_cast<double>(stats.num_blocks) : 0);
  const std::lock_guard lock(m.follow_mutex);
  follow(m.preemptions, stats.num_preemptions);
  follow(m.prompt_tokens, stats.prompt_tokens);
  follow(m.generation_tokens, stats.generation_tokens);
  follow(m.cached_tokens, stats.cached_tokens);
  follow(m.recomputed_tokens, stats.recomputed_tokens);
  follow(m.prefix_queries, stats.prefix_queries);
  follow(m.prefix_hits, stats.prefix_hits);
  m.token_cache_bytes.Set(static_cast<double>(tokens.used_bytes));
  follow(m.token_cache_queries, tokens.query_bytes);
  follow(m.token_cache_hits, tokens.hit_bytes);
  follow(m.corrupted, stats.num_corrupted_requests);
  follow(m.masks_ahead, stats.num_masks_ahead);
  follow(m.late_masks, stats.num_late_masks);
  follow(m.steps, stats.num_steps);
  follow(m.failed_steps, stats.num_failed_steps);
  m.follow_drafts(stats);
  m.follow_adapters(stats, adapters);
  follow(m.from_cache, stats.cached_tokens);
  follow(m.from_compute, stats.prompt_tokens - stats.cached_tokens);
  return prometheus::TextSerializer().Serialize(m.registry.Collect());
}

}  // namespace winnow::server
