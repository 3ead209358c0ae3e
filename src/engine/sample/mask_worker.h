// One thread that fills the masks of a step's tokens while the model works on their logits.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "engine/sample/sampler.h"

namespace winnow {

/// Owned by the engine thread. No lock is held: between begin() and end() the states are the
/// worker's, at all other times the engine's.
class MaskWorker {
 public:
  explicit MaskWorker(std::int32_t vocab_size)
      : vocab_size_(static_cast<std::size_t>(vocab_size)) {}
  ~MaskWorker();
  MaskWorker(const MaskWorker&) = delete;
  MaskWorker& operator=(const MaskWorker&) = delete;

  struct Task {
    SampleState* state = nullptr;  // has a filter
    std::span<const TokenId> drafts{};
    const SampleRules* rules = nullptr;
  };

  /// Hands these over; they are taken in this order. The thread starts with the first of them.
  void begin(std::span<const Task> tasks);
  /// Takes all back, once the mask being filled is done; returns how many were filled. What is left
  /// costs no more than it would have: it is filled when it is needed, by many threads at once.
  std::int64_t end();

 private:
  void work();
  void fill_all();

  std::size_t vocab_size_;
  std::vector<Task> tasks_;
  std::int64_t num_filled_ = 0;
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> is_busy_{false};
  std::atomic<bool> is_ending_{false};
  std::atomic<std::uint64_t> generation_{0};
  std::thread thread_;
};

}  // namespace winnow
