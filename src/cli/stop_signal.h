// SIGTERM and SIGINT as events: the first asks for an orderly end, the second ends the process.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace winnow::cli {

/// Make one before any other thread starts: it blocks the signals for the whole process and waits
/// for them on a thread of its own.
class StopSignal {
 public:
  /// `on_first` runs on the signal thread.
  explicit StopSignal(std::function<void()> on_first = {});
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool is_set() const { return is_set_; }
  /// Whether it came within `timeout`.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds timeout);

 private:
  void watch();

  std::function<void()> on_first_;
  std::atomic<bool> is_set_{false};
  std::atomic<bool> is_ending_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace winnow::cli
