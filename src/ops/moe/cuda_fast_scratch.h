// The scratch of one call, carved with whatever the caller takes bytes from.
#pragma once

#include <cstdint>

#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe {

/// `take(num_bytes)` returns std::byte*, aligned to 256. counters stay unset.
template <typename Take>
Workspace carve(const Layer& layer, Take take) {
  const std::int64_t tokens = layer.num_tokens;
  const std::int64_t pairs = layer.num_pairs();
  const bool decodes = is_decode(layer);
  const std::int64_t slots = decodes ? layer.num_slots() : layer.max_slots();
  const auto floats = [&](std::int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
  const auto ints = [&](std::int64_t count) {
    return reinterpret_cast<std::int32_t*>(take(count * 4));
  };
  Workspace work;
  work.partial_logits =
      floats((tokens <= kMaxSpreadTokens ? layer.hidden / 32 : 1) * tokens * layer.num_experts);
  work.chosen = ints(pairs);
  work.weights = floats(pairs);
  work.slot_of = ints(pairs);
  work.token_of = ints(slots);
  work.active = reinterpret_cast<ActiveExpert*>(
      take(max_active(layer) * static_cast<std::int64_t>(sizeof(ActiveExpert))));
  work.num_active = ints(2);
  if (!decodes) {
    work.counts = ints(layer.num_experts);
    work.tiles = reinterpret_cast<WorkPlace*>(
        take(2 * max_tiles(layer) * static_cast<std::int64_t>(sizeof(WorkPlace))));
    work.num_tiles = ints(2);
    work.shared_slot = ints(1);
    work.gathered = take(slots * layer.hidden * 2);
  }
  work.inputs = take(tokens * layer.hidden * 2);
  work.activations = take(slots * layer.max_width() * 2);
  work.outputs = floats(slots * (decodes ? layer.hidden : output_columns(layer)));
  return work;
}

}  // namespace winnow::cuda::fast_moe
