#include "load/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace winnow::load {
namespace {

namespace asio = server::asio;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kRetry{1};

class Runner {
 public:
  Runner(const RunOptions& options, const std::vector<Prompt>& prompts)
      : options_(options), prompts_(prompts), client_(context_, options.client), slot_(context_) {}

  RunResult run() {
    std::exception_ptr failure;
    asio::co_spawn(context_, whole(), [&](std::exception_ptr error) { failure = error; });
    context_.run();
    if (failure) std::rethrow_exception(failure);
    return std::move(result_);
  }

 private:
  asio::awaitable<void> whole() {
    result_.model = options_.client.model;
    if (prompts_.empty()) co_return;
    co_await wait_ready();
    for (std::size_t i = 0; i < options_.num_warmups; ++i) {
      co_await free_slot();
      start(i % prompts_.size(), false);
    }
    while (num_running_ > 0) co_await slot_change();
    result_.peak_concurrency = 0;
    result_.records.resize(prompts_.size());
    const std::vector<double> arrivals = arrival_seconds(options_.arrivals, prompts_.size());
    start_ = SteadyClock::now();
    asio::steady_timer timer(context_);
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      timer.expires_at(start_ + std::chrono::duration_cast<SteadyClock::duration>(
                                    std::chrono::duration<double>(arrivals[i])));
      if (timer.expiry() > SteadyClock::now()) co_await timer.async_wait(asio::use_awaitable);
      co_await free_slot();
      start(i, true);
    }
    while (num_running_ > 0) co_await slot_change();
    result_.seconds = since_start();
  }

  /// The server may still be loading; a request that it refuses for what it is ends the run.
  asio::awaitable<void> wait_ready() {
    const auto end = SteadyClock::now() + options_.ready_timeout;
    for (;;) {
      std::string failure;
      bool is_refused = false;
      try {
        if (result_.model.empty()) {
          result_.model = co_await client_.first_model();
          client_.set_model(result_.model);
        }
        if (options_.ready_timeout.count() == 0) co_return;
        const RequestRecord record = co_await client_.send(prompts_.front());
        if (record.success) co_return;
        failure = record.error;
        is_refused = is_refusal(record.status);
      } catch (const Error& error) {
        failure = error.text();
        is_refused = error.code() == ErrorCode::kInvalidArgument;
      }
      if (is_refused || SteadyClock::now() + kRetry > end) {
        throw Error(ErrorCode::kUnavailable,
                    fmt::format("the server does not serve a first request: {}", failure));
      }
      asio::steady_timer pause(context_, kRetry);
      co_await pause.async_wait(asio::use_awaitable);
    }
  }

  void start(std::size_t index, bool is_measured) {
    ++num_running_;
    result_.peak_concurrency = std::max(result_.peak_concurrency, num_running_);
    asio::co_spawn(context_, serve(index, is_measured), asio::detached);
  }

  asio::awaitable<void> serve(std::size_t index, bool is_measured) {
    RequestRecord record = co_await client_.send(prompts_[index]);
    --num_running_;
    slot_.cancel();
    if (!is_measured) co_return;
    record.start = std::chrono::duration<double>(record.sent - start_).count();
    result_.records[index] = std::move(record);
  }

  asio::awaitable<void> free_slot() {
    while (options_.max_concurrency > 0 && num_running_ >= options_.max_concurrency) {
      co_await slot_change();
    }
  }
  asio::awaitable<void> slot_change() {
    error_code ignored;
    slot_.expires_at(SteadyClock::time_point::max());
    co_await slot_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  double since_start() const {
    return std::chrono::duration<double>(SteadyClock::now() - start_).count();
  }

  const RunOptions& options_;
  const std::vector<Prompt>& prompts_;
  asio::io_context context_{1};
  Client client_;
  asio::steady_timer slot_;  // cancelled when a request ends
  SteadyClock::time_point start_ = SteadyClock::now();
  std::size_t num_running_ = 0;
  RunResult result_;
};

}  // namespace

RunResult run(const RunOptions& options, const std::vector<Prompt>& prompts) {
  return Runner(options, prompts).run();
}

}  // namespace winnow::load
