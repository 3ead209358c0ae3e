// The DSpark drafter's weights in the layout of one backend.
#pragma once

#include <memory>
#include <vector>

#include "model/packed_weights.h"

namespace winnow {

struct DrafterConfig;
struct DrafterWeights;

struct PackedDrafterLayer {
  ops::Array<float> input_norm;               // [hidden]
  ops::Array<float> attention_norm;           // [hidden], between attention and MLP
  ops::Array<float> q_norm, k_norm;           // [head_dim]
  std::unique_ptr<ops::PackedMatrix> qkv;     // q, k, v
  std::unique_ptr<ops::PackedMatrix> output;  // [hidden][heads · head_dim]
  PackedMlp mlp;
};

/// On a CPU the table W1 stays in the checkpoint's mapping, which must outlive this.
struct PackedDrafter {
  /// One [hidden][hidden] per stream: fc applied to the concatenation is the sum of these.
  std::vector<std::unique_ptr<ops::PackedMatrix>> fc;
  ops::Array<float> hidden_norm;                  // [hidden]
  std::unique_ptr<ops::PackedMatrix> context_kv;  // k, v of layer 0, k, v of layer 1, …
  ops::Array<float> context_k_norm;               // [layers][head_dim]
  std::vector<PackedDrafterLayer> layers;
  ops::Array<float> final_norm;     // [hidden]
  const void* markov_w1 = nullptr;  // [vocab][rank]
  QuantScheme markov_w1_scheme = QuantScheme::kBF16;
  ops::Array<std::byte> markov_w1_copy;                  // on a device
  std::unique_ptr<ops::PackedMatrix> markov_w2;          // [vocab][rank]
  std::unique_ptr<ops::PackedMatrix> confidence_hidden;  // [1][hidden]; null without the head
  std::unique_ptr<ops::PackedMatrix> confidence_markov;  // [1][rank]; null when it reads no token
  float confidence_bias = 0.0F;
  std::uint64_t fingerprint = 0;

  std::int64_t num_bytes() const;
};

/// Throws Error{kInvalidCheckpoint}.
PackedDrafter pack_drafter(const Checkpoint& checkpoint, const DrafterConfig& config,
                           const DrafterWeights& weights, const ops::Backend& backend,
                           const PackingProgress& progress = {});

}  // namespace winnow
