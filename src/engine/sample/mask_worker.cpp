#include "engine/sample/mask_worker.h"

#include "base/assert.h"

namespace winnow {

MaskWorker::~MaskWorker() {
  if (!thread_.joinable()) return;
  is_ending_.store(true);
  generation_.fetch_add(1);
  generation_.notify_one();
  thread_.join();
}

void MaskWorker::begin(std::span<const Task> tasks) {
  WINNOW_ASSERT(tasks_.empty(), "end() comes between two begin()", tasks_.size());
  if (tasks.empty()) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  tasks_.assign(tasks.begin(), tasks.end());
  num_filled_ = 0;
  is_stopped_.store(false, std::memory_order_relaxed);
  is_busy_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_one();
}

std::int64_t MaskWorker::end() {
  if (tasks_.empty()) return 0;
  is_stopped_.store(true, std::memory_order_relaxed);
  is_busy_.wait(true, std::memory_order_acquire);
  tasks_.clear();
  return num_filled_;
}

void MaskWorker::work() {
  for (std::uint64_t seen = 0;;) {
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (is_ending_.load()) return;
    fill_all();
    is_busy_.store(false, std::memory_order_release);
    is_busy_.notify_one();
  }
}

void MaskWorker::fill_all() {
  for (const Task& task : tasks_) {
    if (is_stopped_.load(std::memory_order_relaxed)) return;
    MasksAhead& masks = task.state->masks_ahead;
    masks.fill(*task.state->filter, task.drafts, *task.rules, vocab_size_, is_stopped_);
    num_filled_ += masks.num_filled();
  }
}

}  // namespace winnow
