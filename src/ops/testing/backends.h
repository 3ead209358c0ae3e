// Every backend that this machine can run, the reference first: a test of an operation runs its
// table of shapes on all of them.
#pragma once

#include <functional>
#include <vector>

#include "ops/backend.h"

namespace winnow::ops::testing {

std::vector<Backend> all_backends();

/// Calls `check` with each backend and its own context of `num_threads` threads, under a
/// SCOPED_TRACE with the backend's name.
void for_each_backend(const std::function<void(const Backend&, const OpContext&)>& check,
                      int num_threads = 2);

/// A context for one backend on its own.
class TestContext {
 public:
  explicit TestContext(int num_threads = 2) : pool_(num_threads) {}
  OpContext get() { return {.pool = &pool_, .scratch = &scratch_}; }

 private:
  ThreadPool pool_;
  Scratch scratch_;
};

}  // namespace winnow::ops::testing
