// What the server costs besides the model: an engine that emits a token for every stream at a fixed
// pace, the whole server on one I/O thread before it, and the load generator's client on the other
// end. Prints, for each pace, the processor time of everything but the client as tokens a second
// and core, and the time from the engine's callback to the token's arrival at the client.
//   load_bench [SECONDS] [STREAMS]
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <list>
#include <mutex>
#include <thread>

#include "load/run.h"
#include "load/statistics.h"
#include "server/app.h"
#include "server/http_server.h"
#include "server/testing/test_server.h"
#include "text/tokenizer.h"

namespace winnow::load {
namespace {

using server::testing::kTestVocab;

double cpu_seconds(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Emits one token a step to every request and notes when. A prompt holds its request's number.
class PacedEngine final : public server::EngineClient {
 public:
  PacedEngine(std::size_t num_requests, Clock::duration step)
      : emitted_(num_requests), step_(step), thread_([this] { work(); }) {}
  ~PacedEngine() override {
    is_stopping_ = true;
    thread_.join();
  }

  Engine::Submitted submit(GenerationRequest request) override {
    std::size_t number = 0;
    for (const TokenId token : request.prompt) {
      if (token >= '0' && token <= '9')
        number = number * 10 + static_cast<std::size_t>(token - '0');
    }
    const std::lock_guard lock(mutex_);
    running_.push_back({next_id_, number, std::move(request), {}});
    running_.back().stats.arrival = Clock::now();
    return {.refusal = SubmitRefusal::kNone, .id = next_id_++};
  }
  void abort(RequestId) override {}
  void stop_choice(RequestId, std::int32_t) override {}
  EngineStats stats() const override { return {}; }

  /// Of a request's tokens, in order.
  const std::vector<Clock::time_point>& emitted(std::size_t number) const {
    return emitted_[number];
  }

 private:
  struct Running {
    RequestId id = 0;
    std::size_t number = 0;
    GenerationRequest request;
    RequestStats stats;
  };

  void work() {
    auto next = Clock::now();
    while (!is_stopping_) {
      next = std::max(next + step_, Clock::now() - step_);  // late: does not catch up in a burst
      std::this_thread::sleep_until(next);
      const std::lock_guard lock(mutex_);
      for (auto it = running_.begin(); it != running_.end();) {
        it = emit(*it) ? running_.erase(it) : std::next(it);
      }
    }
  }

  bool emit(Running& running) {
    OutputUpdate update;
    SampledToken sampled;
    sampled.token = 'a';
    update.tokens.push_back(std::move(sampled));
    const bool is_last = ++running.stats.num_output_tokens == running.request.sampling.max_tokens;
    if (is_last) update.finish_reason = FinishReason::kLength;
    emitted_[running.number].push_back(Clock::now());
    running.request.on_update(std::move(update));
    if (is_last) {
      running.stats.finished = Clock::now();
      running.request.on_done(running.stats);
    }
    return is_last;
  }

  std::vector<std::vector<Clock::time_point>> emitted_;
  Clock::duration step_;
  std::mutex mutex_;
  std::list<Running> running_;
  RequestId next_id_ = 1;
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

/// This thread and those it starts from here on. The client has a processor of its own, as clients
/// do: on the server's it would wait for the whole burst of a step.
void stay_on(std::size_t place) {
  static const std::vector<int> processors = [] {
    std::vector<int> out;
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    ::sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &allowed)) out.push_back(i);
    }
    return out;
  }();
  if (processors.size() < 2) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processors[place % processors.size()], &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}

struct Load {
  bool is_chat = false;
  double tokens_per_second = 0;  // over all streams
  std::int64_t num_streams = 64;
  double seconds = 2;
};

void measure(const Load& load) {
  const Tokenizer tokenizer = server::testing::make_byte_tokenizer();
  const server::testing::PlainRenderer renderer;
  stay_on(0);
  const auto num_streams = static_cast<std::size_t>(load.num_streams);
  const double step_seconds = static_cast<double>(load.num_streams) / load.tokens_per_second;
  PacedEngine engine(num_streams, std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(step_seconds)));
  server::ServingModel model;
  model.names = {"noop"};
  model.max_model_len = 1 << 20;
  model.vocab_size = kTestVocab;
  model.tokenizer = &tokenizer;
  model.chat_template = &renderer;
  model.engine = &engine;
  server::ServerMetrics metrics(
      {.model_name = "noop", .max_model_len = 1 << 20, .cache_config = {{"block_size", "128"}}});
  server::AppOptions app_options;
  app_options.log_access = false;
  server::App app(std::move(app_options));
  app.set_ready(&model, &metrics);
  server::HttpOptions http_options;
  http_options.port = 0;
  http_options.num_io_threads = http_options.num_worker_threads = 1;
  server::HttpServer http(http_options, app);
  http.start();

  RunOptions options;
  options.client.base = {.host = "127.0.0.1", .port = std::to_string(http.port()), .path = ""};
  options.client.is_chat = load.is_chat;
  options.client.endpoint = load.is_chat ? "/v1/chat/completions" : "/v1/completions";
  options.client.model = "noop";
  options.client.ignore_eos = true;
  options.ready_timeout = std::chrono::seconds(0);
  std::vector<Prompt> prompts;
  for (std::int64_t i = 0; i < load.num_streams; ++i) {
    prompts.push_back(
        {std::to_string(i), 1, static_cast<std::int64_t>(load.seconds / step_seconds)});
  }
  stay_on(1);
  const double process = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double client = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  const RunResult result = run(options, prompts);
  const double client_seconds = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - client;
  const double server_seconds = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - process - client_seconds;

  std::vector<double> added_ms;
  std::size_t num_events = 0, num_failed = 0;
  for (std::size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    num_failed += !record.success;
    num_events += record.pieces.size();
    std::size_t token = 0;
    for (const auto& piece : record.pieces) {
      for (std::size_t k = 0; k < piece.num_bytes; ++k, ++token) {
        const std::chrono::duration<double> emitted = engine.emitted(i)[token] - record.sent;
        added_ms.push_back(1e3 * (piece.at - emitted.count()));
      }
    }
  }
  const Summary summary = summarise(added_ms, {90, 99});
  const auto num_tokens = static_cast<double>(added_ms.size());
  fmt::print(
      "{:<12} {:>7} {:>10.0f} {:>10.0f} {:>12.2f} {:>12.0f} {:>11.2f} {:>8.3f} {:>8.3f} {:>8.3f} "
      "{:>7}\n",
      load.is_chat ? "chat" : "completions", load.num_streams, load.tokens_per_second,
      num_tokens / result.seconds, 1e6 * server_seconds / num_tokens, num_tokens / server_seconds,
      num_tokens / static_cast<double>(std::max<std::size_t>(num_events, 1)), summary.median,
      summary.percentiles[0], summary.percentiles[1], num_failed);
  std::fflush(stdout);
  http.stop();
}

}  // namespace
}  // namespace winnow::load

int main(int argc, char** argv) {
  winnow::load::Load load;
  std::vector<std::string> words(argv + 1, argv + argc);
  // `./dev bench` gives every benchmark Google Benchmark's flags.
  std::erase_if(words, [](const std::string& word) { return word.starts_with("--benchmark"); });
  if (!words.empty()) load.seconds = std::atof(words[0].c_str());
  if (words.size() > 1) load.num_streams = std::atoll(words[1].c_str());
  if (load.seconds <= 0 || load.num_streams < 1) {
    fmt::print(stderr, "usage: load_bench [SECONDS] [STREAMS]\n");
    return 2;
  }
  fmt::print("{:<12} {:>7} {:>10} {:>10} {:>12} {:>12} {:>11} {:>8} {:>8} {:>8} {:>7}\n", "API",
             "streams", "tok/s set", "tok/s", "CPU µs/token", "tok/s a core", "tokens/event",
             "p50 ms", "p90 ms", "p99 ms", "failed");
  for (const bool is_chat : {false, true}) {
    for (const double rate : {2'000.0, 10'000.0, 20'000.0, 40'000.0}) {
      load.is_chat = is_chat;
      load.tokens_per_second = rate;
      winnow::load::measure(load);
    }
  }
  return 0;
}
