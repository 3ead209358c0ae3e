// /metrics: the names, labels and buckets that vLLM dashboards and autoscalers read.
// Source: spec/serving.md 2.8, serving-fields.md 3.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/adapters/adapter_registry.h"
#include "text/token_cache.h"

namespace winnow::server {

struct MetricsOptions {
  std::string model_name;
  std::int32_t max_model_len = 0;
  std::map<std::string, std::string> cache_config;  // labels of vllm:cache_config_info
  std::int32_t num_speculative_tokens = 0;          // 0: nothing is drafted, nor counted
  bool is_acceptance_synthetic = false;
  std::int32_t max_adapters = 0;  // in one step; 0: the server has none, and tells of none
};

/// What the histograms need to know about a request besides its RequestStats.
struct RequestShape {
  std::int32_t n = 1;
  std::int32_t max_tokens = 0;
  std::int32_t max_generated = 0;  // tokens of its longest choice
};

/// Any thread. Counters only ever rise; nothing here throws for a value.
class ServerMetrics final : public StepObserver {
 public:
  explicit ServerMetrics(const MetricsOptions& options);
  ~ServerMetrics() override;

  void on_step(std::int32_t num_tokens, std::int32_t num_sequences, double seconds) override;
  void on_inter_token_latency(double seconds);
  void on_submitted();  // the engine has taken the request
  void on_choice_finished(FinishReason reason);
  void on_request_done(const RequestStats& stats, const RequestShape& shape);
  void on_rejected(SubmitRefusal refusal);
  void on_http_response(std::string_view method, std::string_view route, int status);

  /// Prometheus text 0.0.4, with the gauges and counters of what is given brought up to date.
  std::string text(const EngineStats& stats, const TokenCacheStats& tokens = {},
                   const AdapterTotals& adapters = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::server
