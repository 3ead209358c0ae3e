#include "ops/cuda/graphs.h"

#include <algorithm>

#include "ops/cuda/check.h"

namespace winnow::cuda {
namespace {

/// A graph of a 60-layer step takes some MiB of device memory.
constexpr std::size_t kMaxGraphs = 64;

/// Ends a capture whatever happens in between, so that the stream stays usable.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
  }
  ~Capture() {
    if (stream_ == nullptr) return;
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    const cudaStream_t stream = stream_;
    stream_ = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    return graph;
  }

 private:
  cudaStream_t stream_;
};

}  // namespace

StepGraphs::~StepGraphs() {
  for (const auto& [kind, generation] : generations_) drop(kind);
}

void StepGraphs::drop(ops::StepKind kind) {
  std::erase_if(entries_, [&](const auto& entry) {
    if (entry.first.kind != kind) return false;
    if (entry.second.graph != nullptr) cudaGraphExecDestroy(entry.second.graph);
    return true;
  });
}

void StepGraphs::make_room() {
  if (entries_.size() < kMaxGraphs) return;
  const auto oldest = std::ranges::min_element(
      entries_, {}, [](const auto& entry) { return entry.second.last_used; });
  if (oldest->second.graph != nullptr) {
    check(cudaStreamSynchronize(stream_), "waiting for the device");
    cudaGraphExecDestroy(oldest->second.graph);
  }
  entries_.erase(oldest);
}

cudaGraph_t StepGraphs::record(const std::function<void()>& step) const {
  const std::lock_guard recording(*recording_);
  Capture capture(stream_);
  step();
  return capture.end();
}

void StepGraphs::run(const ops::StepKey& key, const std::function<void()>& step) {
  const auto [generation, is_new] = generations_.try_emplace(key.kind, key.generation);
  if (!is_new && generation->second != key.generation) {
    check(cudaStreamSynchronize(stream_), "waiting for the device");
    drop(key.kind);
    generation->second = key.generation;
  }
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    step();
    make_room();
    entries_[key].last_used = ++clock_;
    return;
  }
  Entry& entry = found->second;
  entry.last_used = ++clock_;
  if (entry.graph == nullptr) {
    const cudaGraph_t graph = record(step);
    const cudaError_t status = cudaGraphInstantiate(&entry.graph, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
  }
  check(cudaGraphLaunch(entry.graph, stream_), "cudaGraphLaunch");
}

}  // namespace winnow::cuda
