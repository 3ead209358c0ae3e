#include "model/trace_relay.h"

namespace winnow {

template <typename T>
std::span<const T> TraceRelay::on_host(const T* data, std::int64_t count, std::vector<T>& store) {
  const auto size = static_cast<std::size_t>(count);
  if (memory_.is_host()) return {data, size};
  store.resize(size);
  memory_.download(store.data(), data, count * static_cast<std::int64_t>(sizeof(T)));
  return store;
}

void TraceRelay::on_blocks(int layer, const ops::AttentionShape& shape, const ops::CacheView& cache,
                           std::int64_t pool_bytes, const float* index_q,
                           const std::int32_t* blocks) {
  if (!trace_.wants_blocks()) return;
  const ops::BatchView batch = batch_.view();
  const std::int64_t heads = std::int64_t{batch.num_tokens} * shape.num_index_heads;
  ops::CacheView host_cache = cache;
  if (!memory_.is_host()) {
    pool_.resize(static_cast<std::size_t>(pool_bytes));
    memory_.download(pool_.data(), cache.pool, pool_bytes);
    host_cache.pool = pool_.data();
  }
  trace_.on_blocks({.layer = layer,
                    .shape = shape,
                    .batch = batch,
                    .cache = host_cache,
                    .index_q = on_host(index_q, heads * shape.index_head_dim, floats_),
                    .blocks = on_host(blocks, heads * shape.top_k_blocks, integers_)});
}

void TraceRelay::on_experts(int layer, const std::int32_t* experts, const float* weights,
                            std::int32_t top_k) {
  const ops::BatchView batch = batch_.view();
  const std::int64_t choices = std::int64_t{batch.num_tokens} * top_k;
  trace_.on_experts(layer, batch, on_host(experts, choices, integers_),
                    on_host(weights, choices, floats_));
}

void TraceRelay::on_hidden(int layer, const float* hidden, std::int64_t width) {
  const ops::BatchView batch = batch_.view();
  trace_.on_hidden(layer, batch, on_host(hidden, batch.num_tokens * width, floats_));
}

}  // namespace winnow
