// Small checkpoints with random weights in the published layout, for the tests of any folder: any
// mix of BF16, F32, MXFP8 and NVFP4 (both spellings), either config spelling, one file or shards.
//
//   RandomCheckpoint options;                       // 3 layers: dense MLP, then MoE; all sparse
//   options.experts = MatrixSpelling::kNvfp4Packed;
//   write_random_checkpoint(folder, options);
//   const Checkpoint checkpoint(folder);
//   const ModelWeights weights = load_weights(checkpoint, read_model_config(folder));
//
// Link with DEPS checkpoint_testing. Not part of the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/drafter_config.h"
#include "checkpoint/matrix_encoder.h"
#include "checkpoint/model_config.h"

namespace winnow {

/// A drafter in dspark/, on the target's hidden and vocabulary sizes.
struct RandomDrafter {
  DrafterKind kind = DrafterKind::kMinimax;
  std::int32_t num_layers = 2;
  std::int32_t num_heads = 4;
  std::int32_t num_kv_heads = 2;
  std::int32_t head_dim = 32;
  std::int32_t rotary_dim = 16;  // Qwen3: head_dim
  std::int32_t ffn_width = 96;
  std::int32_t sliding_window = 24;
  std::int32_t block_size = 7;
  std::int32_t markov_rank = 16;
  std::int32_t noise_token = 95;
  std::vector<std::int32_t> target_layers = {0, 2};
  bool has_confidence_head = true;
  bool has_own_tables = false;                      // Qwen3: embedding and lm_head
  MatrixSpelling linears = MatrixSpelling::kMxfp8;  // projections; the rest is BF16
};

/// What to write. Weights are normal-like with standard deviation 1/√inputs (norms and biases
/// around 0), drawn by (seed, tensor name, element), so a tensor's values do not depend on its
/// spelling or on the other tensors.
struct RandomCheckpoint {
  std::int32_t vocab_size = 96;
  std::int32_t hidden_size = 64;
  std::int32_t num_heads = 4;
  std::int32_t num_kv_heads = 2;
  std::int32_t head_dim = 32;
  std::int32_t rotary_dim = 16;
  std::int32_t block_tokens = 16;
  std::int32_t top_k_blocks = 4;
  std::int32_t dense_intermediate = 96;
  std::int32_t moe_intermediate = 32;
  std::int32_t shared_intermediate = 32;
  std::int32_t num_experts = 4;
  std::int32_t top_k_experts = 2;
  double swiglu_alpha = 1.702;
  double swiglu_limit = 7.0;
  double routed_scaling_factor = 2.0;
  std::int64_t max_position_embeddings = 65536;
  std::vector<LayerConfig> layers = {{.is_sparse_attention = true, .is_moe = false},
                                     {.is_sparse_attention = true, .is_moe = true},
                                     {.is_sparse_attention = true, .is_moe = true}};

  MatrixSpelling experts = MatrixSpelling::kBF16;
  MatrixSpelling linears = MatrixSpelling::kBF16;     // attention, index, shared, dense MLP
  MatrixSpelling embeddings = MatrixSpelling::kBF16;  // and lm_head
  MatrixSpelling router = MatrixSpelling::kF32;
  bool vectors_f32 = false;  // norms; else BF16. The router's bias is F32 always

  bool hugging_face_config = false;  // flat keys of transformers instead of the published ones
  bool flat_names = false;  // "model.layers…" instead of "language_model.model.layers…"
  bool dense_under_moe_name = false;  // dense MLP under block_sparse_moe., as transformers saves it
  bool with_vision = false;           // adds tensors that a text server ignores
  int num_shards = 1;                 // more than one writes an index
  std::string kv_cache_quant_algo;    // into quantization_config when not empty
  std::optional<RandomDrafter> drafter;
  std::uint64_t seed = 1;
};

/// M3.1 at small size: NVFP4 experts, MXFP8 linears, BF16 embeddings, head_dim 128, block 128.
RandomCheckpoint random_m31();

/// Writes config.json, generation_config.json and the safetensors files into `folder` (created).
void write_random_checkpoint(const std::filesystem::path& folder, const RandomCheckpoint& options);

/// The floats of one matrix before encoding: element [row, col] of `module`.
float random_weight(const RandomCheckpoint& options, std::string_view module, std::int64_t row,
                    std::int64_t col, std::int64_t cols);

}  // namespace winnow
