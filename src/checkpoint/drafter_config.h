// dspark/config.json inside a target's folder: the DSpark drafter that MiniMax-M3.1 ships, or one
// made of Qwen3 layers, as there is for MiniMax-M3. Source: spec/speculative.md sections 1.1
// to 1.3. Values are read, never assumed; what the drafter's code cannot run (gated or recurrent
// Markov heads, hybrid fusion, causal blocks, experts) is refused here by key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/strong_id.h"
#include "checkpoint/problem_list.h"

namespace winnow {

struct ModelConfig;

/// The folder in the target's that holds the drafter.
inline constexpr const char* kDrafterFolder = "dspark";

/// Of which model's layers a drafter is made: names of tensors and keys, and what follows from it.
enum class DrafterKind { kMinimax, kQwen3 };

/// Stands for the window of a drafter that sees all positions: beyond any of a sequence.
inline constexpr std::int32_t kUnlimitedWindow = 1 << 24;

struct DrafterConfig {
  DrafterKind kind = DrafterKind::kMinimax;
  std::int32_t num_layers = 0;
  std::int32_t hidden_size = 0;  // the target's
  std::int32_t vocab_size = 0;   // the target's
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;  // MiniMax: the target's by default; Qwen3: head_dim
  double rope_theta = 0;        // MiniMax: the target's by default
  double rms_eps = 0;           // default: the target's
  // Norms multiply by norm_offset + weight: 1 for MiniMax, 0 for Qwen3.
  double norm_offset = 1;
  // The MLP's activation (ops/mlp/mlp.h). MiniMax: alpha and limit are the target's by default,
  // offset 1. Qwen3's silu(gate) · up: 1, infinite, 0.
  double swiglu_alpha = 0;
  double swiglu_limit = 0;
  double swiglu_offset = 1;
  std::int32_t ffn_width = 0;       // dspark_ffn_hidden_size; Qwen3: intermediate_size
  std::int32_t sliding_window = 0;  // cached keys from position p - (window - 1), for query p
  std::int32_t block_size = 0;      // the block it was trained on: drafts of at most so many tokens
  std::int32_t markov_rank = 0;
  TokenId noise_token = 0;  // stands where the block has no token yet
  /// Layers of the target after which its residual stream is captured, 0-based, ascending.
  std::vector<std::int32_t> target_layers;
  bool has_confidence_head = false;     // Qwen3: one that the config does not name may be there
  bool confidence_uses_markov = false;  // its input is [hidden; W1 of the previous token]
  std::string quant_method;             // "mxfp8" or ""

  std::int32_t num_streams() const { return static_cast<std::int32_t>(target_layers.size()); }
  /// Columns of the confidence head.
  std::int64_t confidence_width() const {
    return hidden_size + (confidence_uses_markov ? markov_rank : 0);
  }
};

/// Whether the target's folder has dspark/config.json.
bool has_drafter(const std::filesystem::path& target_folder);

/// Where the drafter of `folder` is: dspark/ in it or, if its own config.json is that of a DSpark
/// drafter, the folder itself. Throws Error{kNotFound} when it is neither.
std::filesystem::path find_drafter(const std::filesystem::path& folder);

/// Reads config.json of find_drafter(folder). Adds problems (each with the file and the key)
/// instead of throwing for them; fields with a problem are then meaningless. Throws
/// Error{kNotFound} when there is no such file, Error{kInvalidCheckpoint} when it is not JSON.
DrafterConfig read_drafter_config(const std::filesystem::path& folder, const ModelConfig& target,
                                  ProblemList& problems);
/// Throws Error{kInvalidCheckpoint} that lists the problems as well.
DrafterConfig read_drafter_config(const std::filesystem::path& folder, const ModelConfig& target);

/// The same of a parsed file; problems name config.json without the folder.
DrafterConfig parse_drafter_config(const nlohmann::json& config, const ModelConfig& target,
                                   ProblemList& problems);

}  // namespace winnow
