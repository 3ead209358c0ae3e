// Outputs of the public implementation for one prompt, as golden.safetensors keeps them
// (tests/golden/README.md): what `winnow check` compares with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct ModelConfig;

struct Golden {
  std::vector<TokenId> prompt;
  std::vector<std::int32_t> positions;       // of the prompt: those with logits and hidden states
  std::vector<float> logits;                 // [positions][vocab]
  std::map<int, std::vector<float>> hidden;  // layer → [positions][hidden]
  std::map<int, std::vector<std::int32_t>> blocks;  // layer → [index heads][tokens][top_k_blocks]
  std::map<int, std::vector<std::int32_t>> experts;  // layer → [tokens][top_k_experts], any order
  std::map<int, std::vector<float>> expert_weights;  // in the order of `experts`
  std::vector<TokenId> greedy_tokens;                // continuation; may be empty
  std::vector<float> greedy_logits;                  // [greedy_tokens][vocab]
};

/// Throws Error{kNotFound} when there is no such file, Error{kInvalidCheckpoint} when a tensor is
/// missing, of another dtype, or of a shape that `config` does not give.
Golden read_golden(const std::filesystem::path& path, const ModelConfig& config);

}  // namespace winnow
