// winnow serve: the socket is bound first, then the model is loaded, so that a port in use is told
// at once and probes see the loading.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>

#include "base/log.h"
#include "base/machine.h"
#include "cli/engine_setup.h"
#include "cli/progress_bar.h"
#include "cli/server_flags.h"
#include "cli/service_manager.h"
#include "cli/stop_signal.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "server/app.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "text/token_cache.h"

namespace winnow::cli {
namespace {

constexpr std::chrono::milliseconds kFlush{5'000};  // for last bytes after the engine has ended
constexpr std::chrono::milliseconds kStateCheck{1'000};
constexpr std::chrono::milliseconds kBrokenGrace{5'000};
constexpr int kBrokenExit = 3;  // a supervisor should start another process

std::string gigabytes(std::int64_t bytes) {
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

std::string with_commas(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

/// The same as facts, for --log-format json.
void log_ready(const EngineFacts& facts, const server::ServingModel& model,
               const std::string& url) {
  const LogField fields[] = {{"url", url},
                             {"model", model.names.front()},
                             {"version", std::string(kVersion)},
                             {"backend", facts.backend},
                             {"kv_cache_dtype", facts.kv_dtype},
                             {"kv_cache_tokens", facts.pool.num_tokens},
                             {"kv_cache_bytes", facts.pool.num_bytes},
                             {"weight_bytes", facts.weight_bytes},
                             {"max_model_len", std::int64_t{facts.pool.max_model_len}},
                             {"load_seconds", facts.load_seconds}};
  log_event(spdlog::level::info, "ready", fields);
}

void print_table(const EngineFacts& facts, const server::ServingModel& model,
                 const std::string& url, bool has_page) {
  const auto row = [](const char* name, const std::string& value) {
    fmt::print(stderr, "  {:<12} {}\n", name, value);
  };
  fmt::print(stderr, "\nwinnow {}\n", kVersion);
  row("model", fmt::format("{} ({}, {} of weights)", model.names.front(), facts.model_type,
                           gigabytes(facts.weight_bytes)));
  row("machine",
      fmt::format("{}{}, {} threads", facts.machine.empty() ? "" : facts.machine + " beside ",
                  detect_machine().cpu_name, facts.num_threads));
  row("kernels", facts.backend);
  row("KV cache", fmt::format("K, V {} · index keys {} · read as {}", facts.kv_dtype,
                              facts.index_dtype, facts.dequant));
  if (!facts.speculation.empty()) {
    row("drafter",
        fmt::format("{} · {} of weights", facts.speculation, gigabytes(facts.drafter_bytes)));
  }
  if (facts.lora) {
    const server::AdapterTotals totals = model.adapters->totals();
    row("adapters",
        fmt::format("{} loaded, {} · at most {}, {} in a step, rank up to {}", totals.num_adapters,
                    gigabytes(totals.num_bytes), facts.lora->max_loaded, facts.lora->max_loras,
                    facts.lora->max_rank));
  }
  row("pool", fmt::format("{} in {} blocks of {} tokens", gigabytes(facts.pool.num_bytes),
                          with_commas(facts.pool.num_blocks), facts.block_tokens));
  if (!facts.device_memory.empty()) {
    std::string uses;
    for (const auto& [what, bytes] : facts.device_memory) {
      uses += fmt::format("{} {} · ", what, gigabytes(bytes));
    }
    row("memory", uses + gigabytes(facts.free_device_bytes) + " free");
  }
  row("limits", fmt::format("{} tokens a sequence · {} sequences and {} tokens a step",
                            with_commas(facts.pool.max_model_len), facts.max_num_seqs,
                            facts.max_num_batched_tokens));
  row("ready in", fmt::format("{:.2f} s", facts.load_seconds));
  // The form that capacity parsers look for.
  fmt::print(stderr, "GPU KV cache size: {} tokens\n", with_commas(facts.pool.num_tokens));
  fmt::print(stderr, "Maximum concurrency for {} tokens per request: {:.2f}x\n",
             with_commas(facts.pool.max_model_len), facts.pool.sequences_at_max_len);
  fmt::print(stderr, "\n{} {}\n", has_page ? "Open" : "Serving on", url);
  std::fflush(stderr);
}

std::map<std::string, std::string> cache_config_labels(const EngineFacts& facts) {
  return {{"block_size", std::to_string(facts.block_tokens)},
          {"cache_dtype", facts.kv_dtype},
          {"indexer_cache_dtype", facts.index_dtype},
          {"dequant", facts.dequant},
          {"num_gpu_blocks", std::to_string(facts.pool.num_blocks)},
          {"max_model_len", std::to_string(facts.pool.max_model_len)}};
}

/// Steps reach the metrics, which exist only once the model's name and length are known.
class LateObserver final : public StepObserver {
 public:
  void on_step(std::int32_t num_tokens, std::int32_t num_sequences, double seconds) override {
    if (server::ServerMetrics* metrics = target_) {
      metrics->on_step(num_tokens, num_sequences, seconds);
    }
  }
  void set(server::ServerMetrics* target) { target_ = target; }

 private:
  std::atomic<server::ServerMetrics*> target_{nullptr};
};

/// Every connection is a file; the usual soft limit of 1,024 is lower than --max-connections.
void raise_file_limit(int max_connections) {
  constexpr rlim_t kOtherFiles = 128;  // weights, logs, sockets about to be refused
  const rlim_t wanted = static_cast<rlim_t>(max_connections) + kOtherFiles;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= wanted) return;
  spdlog::warn("{} open files are allowed, fewer than --max-connections {}: raise ulimit -n",
               limit.rlim_cur, max_connections);
}

void log_drafts(const EngineStats& stats) {
  if (stats.num_drafts == 0) return;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(whole, 1));
  };
  spdlog::info("drafts: {} of {} accepted ({:.1f} %), {:.2f} tokens a step with drafts",
               stats.accepted_tokens, stats.draft_tokens,
               100 * share(stats.accepted_tokens, stats.draft_tokens),
               1 + share(stats.accepted_tokens, stats.num_drafts));
}

/// Large blocks are mappings of their own, and free ends of heaps are cut off. By itself glibc
/// raises both limits to what was freed last, and has up to eight heaps a core: after some large
/// bodies each keeps up to 64 MB of pages that hold a few small blocks of what lives on.
void bound_free_memory() {
#ifdef __GLIBC__
  constexpr int kLargeBlock = 256 << 10;  // a body, a prompt; what a step needs was made at start
  constexpr int kFreeEnd = 4 << 20;
  constexpr int kNumHeaps = 4;  // of two I/O threads, two workers and the engine
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  ::mallopt(M_TRIM_THRESHOLD, kFreeEnd);
  ::mallopt(M_ARENA_MAX, kNumHeaps);
#endif
}

/// Gives memory of past requests back to the system once nobody is being served: bodies and
/// answers leave free pages between what lives on, which the allocator keeps by itself.
class IdleTrim {
 public:
  explicit IdleTrim(const server::App& app) : app_(app) {}

  void check() {
    const std::int64_t num_finished = app_.num_finished();
    const bool is_quiet = app_.num_in_flight() == 0 && num_finished == last_seen_;
    last_seen_ = num_finished;
    if (!is_quiet || trimmed_at_ == num_finished) return;
    trimmed_at_ = num_finished;
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }

 private:
  const server::App& app_;
  std::int64_t last_seen_ = 0, trimmed_at_ = 0;  // of num_finished()
};

/// Until a signal comes; false: until the engine was found to be broken, which no later step of
/// this process survives.
bool wait_for_stop(StopSignal& stop, const server::App& app) {
  IdleTrim trim(app);
  while (!stop.wait_for(kStateCheck)) {
    trim.check();
    if (app.state() != server::ServerState::kBroken) continue;
    spdlog::critical("the engine cannot go on; this process ends so that another may start");
    notify_service_manager("STATUS=the engine has failed");
    (void)stop.wait_for(kBrokenGrace);  // probes and clients are told meanwhile
    return false;
  }
  return true;
}

int serve(const EngineFlags& engine_flags, const ServerFlags& server_flags) {
  bound_free_memory();
  const std::vector<std::string> keys = collect_api_keys(server_flags);
  const std::filesystem::path folder = resolve_model_folder(engine_flags.model_folder());
  server::AppOptions app_options;
  app_options.keys = server::ApiKeys(keys);
  app_options.cors = cors_options(server_flags);
  app_options.policy = request_policy(server_flags, engine_flags);
  app_options.response_store = response_store_limits(server_flags);
  app_options.root_path = server_flags.root_path;
  app_options.echo_request_id = server_flags.enable_request_id_headers;
  app_options.log_access = server_flags.access_log && !server_flags.disable_access_log;
  app_options.serve_page = server_flags.page;
  app_options.has_adapters = engine_flags.lora.enable_lora;
  app_options.may_change_adapters = !keys.empty() || is_local_only(server_flags);
  app_options.version = {{"version", kVersion}};
  server::App app(std::move(app_options));
  StopSignal stop([&app] {
    spdlog::info("stopping: new requests are refused, running ones may finish");
    app.start_draining();
  });
  TokenCache token_cache(token_cache_bytes(server_flags));
  const int num_encode_threads = tokenizer_threads(server_flags);
  const server::HttpOptions http_settings = http_options(server_flags, !keys.empty());
  raise_file_limit(http_settings.max_connections);
  server::HttpServer http(http_settings, app);
  http.start();
  notify_service_manager("STATUS=loading " + folder.filename().string());

  LateObserver observer;
  std::unique_ptr<server::ServerMetrics> metrics;
  std::unique_ptr<EngineSetup> setup;
  {
    ProgressBar bar("loading");
    setup = std::make_unique<EngineSetup>(
        engine_flags, &observer, [&](std::int64_t done, std::int64_t total) {
          app.set_loading_progress(total > 0 ? static_cast<int>(done * 100 / total) : 0);
          bar.update(done, total);
        });
  }
  std::vector<std::string> names = server_flags.served_model_names;
  server::ServingModel model = setup->serving_model({});
  if (names.empty()) {
    names.push_back(model.root);  // the folder's name; the word as given is accepted too
    if (engine_flags.model_folder() != model.root) names.push_back(engine_flags.model_folder());
  }
  model.names = std::move(names);
  if (model.adapters != nullptr) model.adapters->set_model_names(model.names);
  model.token_cache = &token_cache;
  model.num_encode_threads = num_encode_threads;
  const EngineFacts& facts = setup->facts();
  model.fingerprint = fingerprint(
      server_flags, fmt::format("{} {} {} {} {} {}", model.root, facts.backend, facts.kv_dtype,
                                facts.index_dtype, facts.dequant, facts.weight_bytes));
  metrics = std::make_unique<server::ServerMetrics>(
      server::MetricsOptions{.model_name = model.names.front(),
                             .max_model_len = model.max_model_len,
                             .cache_config = cache_config_labels(facts),
                             .num_speculative_tokens = facts.num_speculative_tokens,
                             .is_acceptance_synthetic = facts.is_acceptance_synthetic,
                             .max_adapters = facts.lora ? facts.lora->max_loras : 0});
  observer.set(metrics.get());
  Json version{{"version", kVersion},
               {"backend", facts.backend},
               {"kv_cache_dtype", facts.kv_dtype},
               {"indexer_kv_dtype", facts.index_dtype},
               {"dequant", facts.dequant}};
  if (facts.is_acceptance_synthetic) {
    version["synthetic_acceptance"] = true;
    model.fingerprint += "-synthetic-acceptance";
  }
  model.version_body = version.dump();
  int exit_code = 0;
  if (!stop.is_set()) {
    app.set_ready(&model, metrics.get());
    notify_service_manager("READY=1\nSTATUS=serving " + model.names.front());
    if (log_format() == LogFormat::kJson) {
      log_ready(facts, model, http.url());
    } else {
      print_table(facts, model, http.url(), server_flags.page && server_flags.uds.empty());
    }
    if (!wait_for_stop(stop, app)) exit_code = kBrokenExit;
  }

  notify_service_manager("STOPPING=1\nSTATUS=finishing requests");
  app.start_draining();
  app.start_stopping();
  setup->engine().drain(server_flags.shutdown_timeout);  // probes are answered meanwhile
  log_drafts(setup->engine().stats());
  http.stop_accepting();
  if (!http.wait_idle(kFlush)) spdlog::warn("some clients did not take their last bytes");
  http.stop();
  app.stop_background();
  setup.reset();
  spdlog::info("stopped");
  return exit_code;
}

}  // namespace

int run_serve(const Words& words) {
  FlagSet set("serve");
  EngineFlags engine_flags;
  ServerFlags server_flags;
  add_engine_flags(set, engine_flags);
  add_lora_flags(set, engine_flags.lora);
  add_server_flags(set, server_flags);
  add_foreign_engine_flags(set);
  add_foreign_server_flags(set);
  set.set_environment(flag_variables());
  if (!set.parse(words)) return 0;
  if (set.is_given("uvicorn-log-level")) engine_flags.log_level = log_level(server_flags);
  init_log(engine_flags.log_level,
           server_flags.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  for (const std::string& note : set.notes()) spdlog::warn("{}", note);
  for (const std::string& note : check_engine_flags(engine_flags)) spdlog::warn("{}", note);
  for (const std::string& note : check_server_flags(server_flags)) spdlog::warn("{}", note);
  return serve(engine_flags, server_flags);
}

}  // namespace winnow::cli
