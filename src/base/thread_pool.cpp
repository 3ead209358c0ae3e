#include "base/thread_pool.h"

#include <hwloc.h>

#include <algorithm>

#include "base/assert.h"

namespace winnow {
namespace {

/// Spins before sleeping: an operation is some 10 µs, a futex wake-up costs about as much.
constexpr int kSpins = 4000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// hwloc's view of the machine, restricted to what this process may use.
class Topology {
 public:
  Topology() {
    hwloc_topology_init(&topology_);
    hwloc_topology_load(topology_);
  }
  ~Topology() { hwloc_topology_destroy(topology_); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  int num_cores() const { return std::max(1, hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE)); }

  void bind_calling_thread(int core) const {
    const hwloc_obj_t object =
        hwloc_get_obj_by_type(topology_, HWLOC_OBJ_CORE, static_cast<unsigned>(core % num_cores()));
    if (object != nullptr) hwloc_set_cpubind(topology_, object->cpuset, HWLOC_CPUBIND_THREAD);
  }

 private:
  hwloc_topology_t topology_ = nullptr;
};

}  // namespace

ThreadPool::ThreadPool(int num_threads, bool pin) {
  auto topology = std::make_shared<const Topology>();
  num_threads_ = num_threads > 0 ? num_threads : topology->num_cores();
  if (pin) topology->bind_calling_thread(0);
  for (int t = 1; t < num_threads_; ++t) {
    threads_.emplace_back([this, t, pin, topology] {
      if (pin) topology->bind_calling_thread(t);
      work(t);
    });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_share(int thread) {
  const std::int64_t begin = num_tasks_ * thread / num_threads_;
  const std::int64_t end = num_tasks_ * (thread + 1) / num_threads_;
  for (std::int64_t i = begin; i < end; ++i) task_(i, thread);
}

void ThreadPool::work(int thread) {
  std::uint64_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen;
         ++spin) {
      pause_cpu();
    }
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    run_share(thread);
    if (num_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_running_.notify_one();
  }
}

void ThreadPool::parallel_for(std::int64_t num_tasks, TaskRef task) {
  if (num_tasks <= 0) return;
  num_tasks_ = num_tasks;
  task_ = task;
  if (num_threads_ == 1 || num_tasks == 1) {
    for (std::int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  WINNOW_ASSERT(num_running_.load() == 0, "parallel_for is not reentrant");
  num_running_.store(num_threads_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  run_share(0);
  for (int spin = 0; spin < kSpins && num_running_.load(std::memory_order_acquire) != 0; ++spin) {
    pause_cpu();
  }
  for (int left = num_running_.load(std::memory_order_acquire); left != 0;
       left = num_running_.load(std::memory_order_acquire)) {
    num_running_.wait(left, std::memory_order_acquire);
  }
}

}  // namespace winnow
