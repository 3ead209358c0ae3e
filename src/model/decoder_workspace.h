// What a step of the decoder computes into.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/model_config.h"
#include "model/decoder.h"
#include "ops/memory.h"

namespace winnow {

/// Rows of logits that are computed at a time on a device: more gain nothing and would take
/// vocab_size floats each.
inline constexpr std::int64_t kDeviceLogitRows = 256;

/// Activations of one step, for as many tokens as a step may have.
struct Decoder::Workspace {
  Workspace(const ModelConfig& config, std::int64_t max_tokens, std::size_t num_streams,
            const std::shared_ptr<ops::Memory>& memory) {
    const std::int64_t heads = std::int64_t{config.num_heads} * config.head_dim;
    const std::int64_t index_heads = std::int64_t{config.index_num_heads} * config.index_head_dim;
    const std::int64_t selected = std::int64_t{config.index_num_heads} * config.top_k_blocks;
    const auto floats = [&](std::int64_t width) {
      return ops::Array<float>(memory, max_tokens * width, "activations of a step");
    };
    const auto integers = [&](std::int64_t width) {
      return ops::Array<std::int32_t>(memory, max_tokens * width, "activations of a step");
    };
    residual = floats(config.hidden_size);
    normed = floats(config.hidden_size);
    q = floats(heads);
    attended = floats(heads);
    index_q = floats(index_heads);
    spare = floats(index_heads);
    blocks = integers(selected);
    experts = integers(config.top_k_experts);
    expert_weights = floats(config.top_k_experts);
    for (std::size_t i = 0; i < num_streams; ++i) streams.push_back(floats(config.hidden_size));
    if (!memory->is_host()) {
      logits = ops::Array<float>(memory, std::min(max_tokens, kDeviceLogitRows) * config.vocab_size,
                                 "logits of a step");
    }
  }

  ops::Array<float> residual;              // [tokens][hidden]: the stream that layers add to
  ops::Array<float> normed;                // [tokens][hidden]
  ops::Array<float> q;                     // [tokens][num_heads][head_dim]
  ops::Array<float> attended;              // [tokens][num_heads][head_dim]
  ops::Array<float> index_q;               // [tokens][index heads][index_head_dim]
  ops::Array<float> spare;                 // as index_q
  ops::Array<std::int32_t> blocks;         // [tokens][index heads][top_k_blocks]
  ops::Array<std::int32_t> experts;        // [tokens][top_k_experts]
  ops::Array<float> expert_weights;        // [tokens][top_k_experts]
  ops::Array<float> logits;                // [rows][vocab_size], on a device only
  std::vector<ops::Array<float>> streams;  // [captured layers] of [tokens][hidden]
};

}  // namespace winnow
