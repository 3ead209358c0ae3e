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

/// A matrix of which rows are read. On a CPU it stays in the checkpoint's mapping.
struct PackedTable {
  const void* rows = nullptr;
  QuantScheme scheme = QuantScheme::kBF16;
  ops::Array<std::byte> copy;  // on a device
};

/// On a CPU the checkpoint's mapping must outlive this: tables are read from it.
struct PackedDrafter {
  /// One [hidden][hidden] per stream: fc applied to the concatenation is the sum of these.
  std::vector<std::unique_ptr<ops::PackedMatrix>> fc;
  ops::Array<float> hidden_norm;                  // [hidden]
  std::unique_ptr<ops::PackedMatrix> context_kv;  // k, v of layer 0, k, v of layer 1, …
  ops::Array<float> context_k_norm;               // [layers][head_dim]
  std::vector<PackedDrafterLayer> layers;
  ops::Array<float> final_norm;                          // [hidden]
  PackedTable markov_w1;                                 // [vocab][rank]
  std::unique_ptr<ops::PackedMatrix> markov_w2;          // [vocab][rank]
  std::unique_ptr<ops::PackedMatrix> confidence_hidden;  // [1][hidden]; null without the head
  std::unique_ptr<ops::PackedMatrix> confidence_markov;  // [1][rank]; null when it reads no token
  float confidence_bias = 0.0F;
  PackedTable embedding;                       // [vocab][hidden]; no rows: the target's
  std::unique_ptr<ops::PackedMatrix> lm_head;  // [vocab][hidden]; null: the target's
  std::uint64_t fingerprint = 0;

  /// The target's, where the drafter has none of its own.
  SharedTables tables(const SharedTables& target) const;
  std::int64_t num_bytes() const;
};

/// Throws Error{kInvalidCheckpoint}.
PackedDrafter pack_drafter(const Checkpoint& checkpoint, const DrafterConfig& config,
                           const DrafterWeights& weights, const ops::Backend& backend,
                           const PackingProgress& progress = {});

}  // namespace winnow
