// Where the engine thread leaves a request's news and the I/O thread picks it up. Bounded: a client
// that does not read is given up instead of filling memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/request.h"

namespace winnow::server {

struct InboxLimits {
  std::int64_t soft_bytes = 4LL << 20;  // may be exceeded for `patience`
  std::int64_t hard_bytes = 64LL << 20;
  std::chrono::seconds patience{60};
};

/// push() and done() on the engine thread: they never block for long and never throw for load.
/// The rest on the reply's strand.
class UpdateInbox {
 public:
  explicit UpdateInbox(std::int32_t num_prompts, InboxLimits limits = {});

  struct News {
    std::vector<std::pair<std::int32_t, OutputUpdate>> updates;  // with the prompt's index
    bool has_more = false;  // was cut at `max_bytes`: take again, there is no further wake
    bool all_done = false;  // and nothing more to take
  };

  void push(std::int32_t prompt, OutputUpdate&& update);
  void done(std::int32_t prompt, const RequestStats& stats);

  /// `wake` is called after the next push or done, once until the next take().
  void set_wake(std::function<void()> wake);
  /// The oldest news, at least one and then up to `max_bytes`: written out they grow tenfold, so a
  /// stream takes them in pieces.
  News take(std::int64_t max_bytes = INT64_MAX);
  /// Drops what is there and what comes; wake is forgotten.
  void close();

  bool has_overflown() const { return has_overflown_; }
  /// After all_done.
  const std::vector<RequestStats>& stats() const { return stats_; }

 private:
  void notify(std::unique_lock<std::mutex>& lock);

  InboxLimits limits_;
  std::mutex mutex_;
  std::function<void()> wake_;
  bool is_wake_pending_ = false;
  bool is_closed_ = false;
  std::int64_t queued_bytes_ = 0;
  std::optional<Clock::time_point> over_since_;
  std::atomic<bool> has_overflown_{false};
  struct Queued {
    std::int32_t prompt = 0;
    std::int64_t num_bytes = 0;
    OutputUpdate update;
  };
  std::deque<Queued> updates_;
  std::vector<RequestStats> stats_;
  std::int32_t num_running_;
};

}  // namespace winnow::server
