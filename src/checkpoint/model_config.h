// config.json and generation_config.json of MiniMax-M3 / M3.1, in the published spelling (nested
// text_config, sparse_attention_config) and in transformers' (flat index_* keys, layer_types), or
// flattened. Source: spec/model.md section 1. What the model code cannot serve is refused here by
// key, value and what is accepted; what is missing has no default unless this header names one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/strong_id.h"
#include "checkpoint/problem_list.h"
#include "formats/cache_row.h"

namespace winnow {

struct LayerConfig {
  bool is_sparse_attention = false;  // has an index branch and attends to the blocks it selects
  bool is_moe = false;               // else a dense MLP
  friend bool operator==(const LayerConfig&, const LayerConfig&) = default;
};

/// quantization_config as far as it is read: tensors, not this, decide how a weight is stored.
struct QuantizationInfo {
  std::string method;         // quant_method: "" (none), "mxfp8", "modelopt", "compressed-tensors"
  std::string moe_algorithm;  // moe_quant_algo, e.g. "NVFP4"
  std::string moe_format;     // moe_quant_format, e.g. "nvfp4-pack-quantized"
  std::string kv_cache;       // kv_cache_quant_algo, e.g. "NVFP4", "FP8"; "" when absent or null
};

/// Sampling defaults of generation_config.json that a server applies when a request is silent.
struct GenerationDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<std::int64_t> max_new_tokens;
};

struct ModelConfig {
  std::string model_type;
  std::string dtype;  // "bfloat16", "float32", …; "" when not given

  std::int32_t vocab_size = 0;
  std::int32_t hidden_size = 0;
  std::int32_t num_layers = 0;
  std::vector<LayerConfig> layers;  // [num_layers]
  std::int64_t max_position_embeddings = 0;
  double rms_eps = 0;
  bool tie_word_embeddings = false;  // the checkpoint then has no lm_head.weight

  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;  // leading dims of a head that RoPE turns
  double rope_theta = 0;

  // Sparse attention. Without a sparse layer: block_tokens 128 (the cache needs a size), the rest
  // 0.
  std::int32_t index_num_heads = 0;  // = num_kv_heads
  std::int32_t index_head_dim = 0;   // = head_dim
  std::int32_t block_tokens = 128;
  std::int32_t top_k_blocks = 0;
  std::int32_t local_blocks = 0;  // newest blocks, always selected; at least 1
  std::int32_t init_blocks = 0;   // first blocks, always selected; default 0, as transformers

  std::int32_t dense_intermediate = 0;   // 0 without a dense layer
  std::int32_t moe_intermediate = 0;     // the following: 0 without a MoE layer
  std::int32_t shared_intermediate = 0;  // default: moe_intermediate
  std::int32_t num_experts = 0;
  std::int32_t top_k_experts = 0;
  double routed_scaling_factor = 0;
  // Both MLPs: g = min(gate, limit), u = clamp(up, ±limit), (u + 1) · g · sigmoid(alpha · g).
  double swiglu_alpha = 0;
  double swiglu_limit = 0;

  std::vector<TokenId> bos_token_ids;
  std::vector<TokenId> eos_token_ids;  // generation_config.json before config.json
  std::optional<TokenId> image_token;
  std::optional<TokenId> video_token;
  bool has_vision = false;

  QuantizationInfo quantization;
  GenerationDefaults generation;

  int num_sparse_layers() const;
  std::vector<int> sparse_layers() const;  // ascending
  /// What `auto` means for the KV and the index cache: kv_cache_quant_algo where given; else
  /// nvfp4 for M3.1, which is known by NVFP4 experts and an index branch in every layer; else bf16.
  CacheDType default_cache_dtype() const;
};

/// Reads the folder's config.json and, where there is one, generation_config.json. Throws
/// Error{kInvalidCheckpoint} that lists the problems, Error{kIo} when config.json cannot be read.
ModelConfig read_model_config(const std::filesystem::path& folder);

/// Adds problems instead of throwing for them; fields with a problem are then meaningless.
ModelConfig read_model_config(const std::filesystem::path& folder, ProblemList& problems);

/// The same of parsed files; `generation` may be null.
ModelConfig parse_model_config(const nlohmann::json& config, const nlohmann::json* generation,
                               ProblemList& problems);

}  // namespace winnow
