// The DSpark drafter's weights as typed views into its mapped checkpoint, dspark/ inside the
// target's folder. Source: spec/speculative.md 1.1 and 1.2. Embedding and lm_head are the target's:
// a MiniMax drafter that brings its own is refused, a Qwen3 one uses it.
#pragma once

#include <filesystem>
#include <vector>

#include "checkpoint/drafter_config.h"
#include "checkpoint/weights.h"

namespace winnow {

struct DrafterLayerWeights {
  std::vector<float> input_norm;           // [hidden]
  std::vector<float> post_attention_norm;  // [hidden]
  WeightMatrix q;                          // [heads * head_dim][hidden]
  WeightMatrix k;                          // [kv_heads * head_dim][hidden]
  WeightMatrix v;                          // [kv_heads * head_dim][hidden]
  WeightMatrix o;                          // [hidden][heads * head_dim]
  std::vector<float> q_norm;               // [head_dim]
  std::vector<float> k_norm;               // [head_dim]
  GatedMlp mlp;
};

/// Norm weights are raw: the norm multiplies by (norm_offset + w) in FP32.
struct DrafterWeights {
  WeightMatrix fc;                 // [hidden][streams * hidden], BF16 or F32
  std::vector<float> hidden_norm;  // [hidden], after fc
  std::vector<DrafterLayerWeights> layers;
  std::vector<float> final_norm;       // [hidden]
  WeightMatrix markov_w1;              // [vocab][rank], BF16 or F32: a table of rows
  WeightMatrix markov_w2;              // [vocab][rank], BF16 or F32
  WeightMatrix confidence;             // [1][confidence_width], BF16 or F32; no rows without head
  std::vector<float> confidence_bias;  // [1]
  WeightMatrix embed;                  // [vocab][hidden], BF16 or F32; no rows: the target's
  WeightMatrix lm_head;                // [vocab][hidden]; no rows: the target's
};

/// Matches the drafter's checkpoint (opened on the folder dspark/) with its config: every tensor
/// must be there with the expected shape and dtype, and the files must hold no other. Views live as
/// long as `checkpoint`. Adds problems, each with the file and the tensor.
DrafterWeights load_drafter_weights(const Checkpoint& checkpoint, const DrafterConfig& config,
                                    const WeightLoadOptions& options, ProblemList& problems);
/// Throws Error{kInvalidCheckpoint} that lists the problems.
DrafterWeights load_drafter_weights(const Checkpoint& checkpoint, const DrafterConfig& config,
                                    const WeightLoadOptions& options = {});

}  // namespace winnow
