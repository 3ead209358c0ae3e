#include "server/adapters/adapter_loads.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/log.h"
#include "server/error_body.h"

namespace winnow::server {
namespace {

constexpr std::size_t kMaxJobs = 16;

/// Never throws: it is a thread's work.
HttpResponse load_now(AdapterRegistry& registry, const AdapterRegistry::Load& load) {
  try {
    const auto start = std::chrono::steady_clock::now();
    const auto adapter = registry.load(load);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const LogField fields[] = {{"name", adapter->name},
                               {"rank", std::int64_t{adapter->weights->rank()}},
                               {"bytes", adapter->weights->num_bytes()},
                               {"seconds", elapsed.count()}};
    log_event(spdlog::level::info, "adapter loaded", fields);
    return {.content_type = "text/plain; charset=utf-8",
            .body = fmt::format("Success: LoRA adapter '{}' added successfully.", load.name)};
  } catch (const Error& error) {
    spdlog::warn("adapter '{}' was not loaded: {}", load.name, error.text());
    return adapter_error(error);
  } catch (const std::exception& error) {
    spdlog::error("adapter '{}' was not loaded: {}", load.name, error.what());
    return error_response(500, "the server failed to load the adapter");
  }
}

}  // namespace

class AdapterLoads::Reply final : public PendingReply {
 public:
  void start(std::function<void()> wake) override {
    bool is_done = false;
    {
      const std::lock_guard lock(mutex_);
      wake_ = wake;
      is_done = response_.has_value();
    }
    if (is_done) wake();
  }
  Output take() override {
    const std::lock_guard lock(mutex_);
    Output output;
    output.finished = response_.has_value();
    output.head = std::exchange(response_, std::nullopt);
    return output;
  }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    wake_ = nullptr;
  }
  std::string keep_alive_bytes() const override { return {}; }

  void finish(HttpResponse response) {
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      response_ = std::move(response);
      wake = wake_;
    }
    if (wake) wake();
  }

 private:
  std::mutex mutex_;
  std::function<void()> wake_;
  std::optional<HttpResponse> response_;
};

std::shared_ptr<PendingReply> AdapterLoads::add(AdapterRegistry& registry,
                                                AdapterRegistry::Load load) {
  auto reply = std::make_shared<Reply>();
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) throw Error(ErrorCode::kUnavailable, "the server is shutting down");
    if (jobs_.size() >= kMaxJobs) {
      throw Error(ErrorCode::kQueueFull,
                  fmt::format("{} adapters are waiting to be loaded", jobs_.size()), "retry later");
    }
    jobs_.push_back({.registry = &registry, .load = std::move(load), .reply = reply});
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_one();
  return reply;
}

void AdapterLoads::stop() {
  std::deque<Job> refused;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    refused.swap(jobs_);
  }
  changed_.notify_one();
  for (const Job& job : refused) {
    job.reply->finish(error_response(503, "the server is shutting down"));
  }
  if (thread_.joinable()) thread_.join();
}

void AdapterLoads::run() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
      if (is_stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.reply->finish(load_now(*job.registry, job.load));
  }
}

HttpResponse adapter_error(const Error& error) {
  HttpResponse response = error_response(error);
  if (error.code() != ErrorCode::kInvalidArgument) return response;
  response.body =
      error_body(response.status, "InvalidUserInput", without_paths(error.text()), error.param());
  return response;
}

}  // namespace winnow::server
