// Recorded steps: a decode step is some hundred launches, and a CUDA graph submits them as one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "ops/backend.h"
#include "ops/cuda/memory.h"

struct CUstream_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace winnow::cuda {

/// The first step of a key runs as it is (kernels are loaded and sized then), the second is
/// recorded while it runs, later ones are replayed. Used by the thread that owns the decoder.
class StepGraphs {
 public:
  StepGraphs(CUstream_st* stream, SharedLock recording)
      : stream_(stream), recording_(std::move(recording)) {}
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  /// Throws what `step` throws; nothing is recorded then.
  void run(const ops::StepKey& key, const std::function<void()>& step);

 private:
  struct Entry {
    CUgraphExec_st* graph = nullptr;  // null: seen once
    std::int64_t last_used = 0;
  };

  void drop(ops::StepKind kind);
  void make_room();
  CUgraph_st* record(const std::function<void()>& step) const;

  CUstream_st* stream_;
  SharedLock recording_;
  std::map<ops::StepKey, Entry> entries_;
  std::map<ops::StepKind, std::int64_t> generations_;
  std::int64_t clock_ = 0;
};

}  // namespace winnow::cuda
