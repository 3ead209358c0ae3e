#include "engine/engine.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "engine/engine_core.h"

namespace winnow {

/// The mailbox and the thread. What other threads see is under one mutex, taken once per step.
class Engine::Impl {
 public:
  Impl(const EngineOptions& options, ModelRunner& runner, StepObserver* observer)
      : options_(options), runner_(runner), core_(options, runner, observer) {
    publish();
    std::promise<void> is_prepared;
    std::future<void> prepared = is_prepared.get_future();
    // The promise is the thread's: telling may outlast the waiting.
    thread_ = std::thread([this, done = std::move(is_prepared)]() mutable {
      core_.prepare();
      done.set_value();
      run();
    });
    prepared.wait();
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      is_draining_ = true;
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  Submitted submit(GenerationRequest request) {
    validate_request(request, options_, runner_);
    const auto num_tokens = static_cast<std::int64_t>(request.prompt.size());
    Submitted submitted;
    {
      const std::lock_guard lock(mutex_);
      submitted.refusal = refusal_for(num_tokens);
      if (submitted.refusal != SubmitRefusal::kNone) return submitted;
      submitted.id = ++num_submitted_requests_;
      num_submitted_tokens_ += num_tokens;
      commands_.push_back(Submit{submitted.id, std::move(request), Clock::now()});
    }
    wake_.notify_one();
    return submitted;
  }

  template <typename Command>
  void send(Command command) {
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    wake_.notify_one();
  }

  void abort(RequestId id) { send(Abort{id}); }
  void stop_choice(RequestId id, std::int32_t choice) { send(StopChoice{id, choice}); }

  void drain(double timeout_seconds) {
    std::unique_lock lock(mutex_);
    is_draining_ = true;
    const auto all_ended = [this] {
      return num_ended_requests_ == static_cast<std::int64_t>(num_submitted_requests_);
    };
    if (idle_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), all_ended)) return;
    commands_.push_back(AbortAll{});
    wake_.notify_one();
    idle_.wait(lock, all_ended);
  }

  bool reset_prefix_cache(bool force) {
    Reset reset{force, {}};
    std::future<bool> done = reset.done.get_future();
    send(std::move(reset));
    return done.get();
  }

  bool set_drafting(bool is_on) {
    SetDrafting command{is_on, {}};
    std::future<bool> done = command.done.get_future();
    send(std::move(command));
    return done.get();
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  struct Submit {
    RequestId id;
    GenerationRequest request;
    Clock::time_point arrival;
  };
  struct Abort {
    RequestId id;
  };
  struct StopChoice {
    RequestId id;
    std::int32_t choice;
  };
  struct AbortAll {};
  struct Reset {
    bool force;
    std::promise<bool> done;
  };
  struct SetDrafting {
    bool is_on;
    std::promise<bool> done;
  };
  using Command = std::variant<Submit, Abort, StopChoice, AbortAll, Reset, SetDrafting>;

  /// With the mutex held.
  SubmitRefusal refusal_for(std::int64_t num_tokens) const {
    if (stats_.is_broken) return SubmitRefusal::kBroken;
    if (is_draining_) return SubmitRefusal::kDraining;
    const std::int64_t num_queued =
        static_cast<std::int64_t>(num_submitted_requests_) - num_dequeued_requests_;
    if (num_queued >= options_.max_num_queued_requests) return SubmitRefusal::kQueueFullRequests;
    const std::int64_t queued_tokens = num_submitted_tokens_ - num_dequeued_tokens_;
    // One prompt may exceed the limit by itself, else it could never be served.
    if (options_.max_num_queued_tokens > 0 && num_queued > 0 &&
        queued_tokens + num_tokens > options_.max_num_queued_tokens) {
      return SubmitRefusal::kQueueFullTokens;
    }
    return SubmitRefusal::kNone;
  }

  /// Stopping answers what is still in the mailbox before it ends the rest.
  void run() {
    std::deque<Command> commands;
    for (;;) {
      bool is_last = false;
      {
        std::unique_lock lock(mutex_);
        publish();
        wake_.wait(lock, [this] { return !commands_.empty() || is_stopping_ || core_.has_work(); });
        std::swap(commands, commands_);
        is_last = is_stopping_;
      }
      for (Command& command : commands) {
        std::visit([this](auto& c) { apply(c); }, command);
      }
      commands.clear();
      if (is_last) break;
      core_.step();
    }
    core_.abort_all();
    const std::lock_guard lock(mutex_);
    publish();
  }

  /// With the mutex held: what other threads see of the core.
  void publish() {
    stats_ = core_.stats();
    num_dequeued_requests_ = core_.num_dequeued_requests();
    num_dequeued_tokens_ = core_.num_dequeued_tokens();
    num_ended_requests_ = core_.num_ended_requests();
    if (!core_.has_work()) idle_.notify_all();
  }

  void apply(Submit& c) { core_.submit(c.id, std::move(c.request), c.arrival); }
  void apply(const Abort& c) { core_.abort(c.id); }
  void apply(const StopChoice& c) { core_.stop_choice(c.id, c.choice); }
  void apply(const AbortAll&) { core_.abort_all(); }
  void apply(SetDrafting& c) { c.done.set_value(core_.set_drafting(c.is_on)); }
  void apply(Reset& c) { c.done.set_value(core_.reset_prefix_cache(c.force)); }

  const EngineOptions options_;
  ModelRunner& runner_;
  EngineCore core_;  // of the engine thread, but for construction

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the engine thread waits here for something to do
  std::condition_variable idle_;  // drain() waits here
  std::deque<Command> commands_;
  bool is_draining_ = false;
  bool is_stopping_ = false;
  RequestId num_submitted_requests_ = 0;  // and the last id given
  std::int64_t num_submitted_tokens_ = 0;
  std::int64_t num_dequeued_requests_ = 0, num_dequeued_tokens_ = 0, num_ended_requests_ = 0;
  EngineStats stats_;
  std::thread thread_;
};

Engine::Engine(const EngineOptions& options, ModelRunner& runner, StepObserver* observer) {
  validate_options(options, runner);
  impl_ = std::make_unique<Impl>(options, runner, observer);
}

Engine::~Engine() = default;

Engine::Submitted Engine::submit(GenerationRequest request) {
  return impl_->submit(std::move(request));
}

void Engine::abort(RequestId id) { impl_->abort(id); }

void Engine::stop_choice(RequestId id, std::int32_t choice) { impl_->stop_choice(id, choice); }

void Engine::drain(double timeout_seconds) { impl_->drain(timeout_seconds); }

bool Engine::reset_prefix_cache(bool force) { return impl_->reset_prefix_cache(force); }

bool Engine::set_drafting(bool is_on) { return impl_->set_drafting(is_on); }

EngineStats Engine::stats() const { return impl_->stats(); }

}  // namespace winnow
