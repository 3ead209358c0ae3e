// What every operation is lent for one call: threads and scratch. Operations hold no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/memory.h"
#include "base/thread_pool.h"

namespace winnow::cuda {
class Context;
}

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

  /// A place to go back to: an operation that works in rounds takes the same bytes for each.
  struct Mark {
    std::int64_t used = 0;
    std::int64_t taken = 0;
    std::size_t num_overflows = 0;
  };
  Mark mark() const { return {used_, taken_, overflow_.size()}; }
  /// What was taken since `mark` is no longer valid.
  void rewind(const Mark& mark);

 private:
  Buffer buffer_;
  std::int64_t used_ = 0;         // of buffer_
  std::int64_t taken_ = 0;        // in buffer_ and overflow_
  std::int64_t peak_ = 0;         // of taken_ since the last reset(): what one buffer had to hold
  std::vector<Buffer> overflow_;  // blocks of this round, merged at reset()
};

/// Called from the thread that owns `pool`; each operation resets `scratch` when it is done.
struct OpContext {
  ThreadPool* pool = nullptr;
  Scratch* scratch = nullptr;
  cuda::Context* cuda = nullptr;  // stream and device scratch; null on a CPU backend
};

}  // namespace winnow::ops
