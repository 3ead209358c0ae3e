// Compute threads with a fixed partition: which thread runs a task depends on the task count alone,
// and no task's result may depend on the thread, so the pool's size never changes a bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace winnow {

/// A non-owning reference to a callable `void(std::int64_t task, int thread)`: no allocation per
/// call.
class TaskRef {
 public:
  TaskRef() = default;
  template <typename F>
  TaskRef(const F& f)  // NOLINT(google-explicit-constructor): taken from lambdas at call sites
      : object_(&f), call_([](const void* o, std::int64_t task, int thread) {
          (*static_cast<const F*>(o))(task, thread);
        }) {}
  void operator()(std::int64_t task, int thread) const { call_(object_, task, thread); }

 private:
  const void* object_ = nullptr;
  void (*call_)(const void*, std::int64_t, int) = nullptr;
};

/// Owned by one thread (the engine's), which takes part as thread 0. Not reentrant.
class ThreadPool {
 public:
  /// `num_threads` ≥ 1, the caller included; 0 = one per physical core this process may use.
  /// With `pin`, thread i is bound to the i-th such core (the caller too).
  explicit ThreadPool(int num_threads = 0, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  /// Runs task(i, thread) for every i in [0, num_tasks), thread t taking the t-th contiguous share;
  /// returns when all are done. Tasks must not throw.
  void parallel_for(std::int64_t num_tasks, TaskRef task);

 private:
  void work(int thread);
  void run_share(int thread);

  int num_threads_ = 1;
  std::int64_t num_tasks_ = 0;
  TaskRef task_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<int> num_running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace winnow
