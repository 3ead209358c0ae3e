// Hands a step's insides to a DecoderTrace, which reads host memory: from a device they are copied.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/decoder_trace.h"
#include "model/flat_batch.h"
#include "ops/memory.h"

namespace winnow {

class TraceRelay {
 public:
  TraceRelay(ops::Memory& memory, DecoderTrace& trace, const FlatBatch& batch)
      : memory_(memory), trace_(trace), batch_(batch) {}

  /// `cache` and the spans are the backend's; `pool_bytes` is the size of the cache's pool.
  void on_blocks(int layer, const ops::AttentionShape& shape, const ops::CacheView& cache,
                 std::int64_t pool_bytes, const float* index_q, const std::int32_t* blocks);
  void on_experts(int layer, const std::int32_t* experts, const float* weights, std::int32_t top_k);
  void on_hidden(int layer, const float* hidden, std::int64_t width);

 private:
  /// `data` itself on a host, else a copy in `store`.
  template <typename T>
  std::span<const T> on_host(const T* data, std::int64_t count, std::vector<T>& store);

  ops::Memory& memory_;
  DecoderTrace& trace_;
  const FlatBatch& batch_;
  std::vector<std::byte> pool_;
  std::vector<float> floats_;
  std::vector<std::int32_t> integers_;
};

}  // namespace winnow
