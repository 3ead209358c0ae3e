// What every operation is lent for one call: threads and scratch. Operations hold no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"

namespace winnow::ops {

/// Scratch that only grows, owned by the engine thread: after the first step of the largest shape a
/// step allocates nothing. take() is valid until the next reset().
class Scratch {
 public:
  /// At least `num_bytes`, aligned to 64 bytes, contents undefined.
  std::byte* take(std::int64_t num_bytes);
  template <typename T>
  T* take_array(std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  }
  void reset();

 private:
  Buffer buffer_;
  std::int64_t used_ = 0;
  std::int64_t wanted_ = 0;       // what one buffer would have had to hold
  std::vector<Buffer> overflow_;  // blocks of this round, merged at reset()
};

/// Called from the thread that owns `pool`; each operation resets `scratch` when it is done.
struct OpContext {
  ThreadPool* pool = nullptr;
  Scratch* scratch = nullptr;
};

}  // namespace winnow::ops
