// The model's weights in the layout of one backend: what the decoder reads at every step.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/backend.h"

namespace winnow {

class Checkpoint;
struct ModelWeights;

struct PackedMlp {
  std::unique_ptr<ops::PackedMatrix> gate_up;  // [2 · width][hidden]
  std::unique_ptr<ops::PackedMatrix> down;     // [hidden][width]

  ops::MlpWeights view() const { return {.gate_up = gate_up.get(), .down = down.get()}; }
};

struct PackedMoe {
  std::unique_ptr<ops::PackedMatrix> router;  // [num_experts][hidden]
  ops::Array<float> router_bias;              // [num_experts]
  std::vector<PackedMlp> experts;
  std::vector<ops::MlpWeights> expert_views;  // of `experts`
  PackedMlp shared;                           // null without a shared expert
  std::unique_ptr<ops::ExpertTable> table;    // null where the backend wants none
};

struct PackedLayer {
  ops::Array<float> input_norm;                  // [hidden]
  ops::Array<float> attention_norm;              // [hidden], between attention and MLP
  ops::Array<float> q_norm, k_norm;              // [head_dim]
  ops::Array<float> index_q_norm, index_k_norm;  // [index_head_dim], empty in a dense layer
  std::unique_ptr<ops::PackedMatrix> qkv;        // q, k, v, then index_q, index_k
  std::unique_ptr<ops::PackedMatrix> output;     // [hidden][num_heads · head_dim]
  PackedMlp mlp;                                 // of a layer without experts
  PackedMoe moe;
};

/// What a drafter shares with its target; views.
struct SharedTables {
  const void* embedding = nullptr;  // [vocab_size][hidden]
  QuantScheme embedding_scheme = QuantScheme::kBF16;
  const ops::PackedMatrix* lm_head = nullptr;
};

/// All of it in the backend's memory. On a CPU the embedding table stays in the checkpoint's
/// mapping, which must outlive this.
struct PackedWeights {
  const void* embedding = nullptr;  // [vocab_size][hidden]
  QuantScheme embedding_scheme = QuantScheme::kBF16;
  ops::Array<std::byte> embedding_copy;  // what `embedding` points to on a device
  ops::Array<float> final_norm;
  std::unique_ptr<ops::PackedMatrix> lm_head;
  std::vector<PackedLayer> layers;
  std::uint64_t fingerprint = 0;  // of the weights' contents, sampled

  SharedTables shared_tables() const {
    return {.embedding = embedding, .embedding_scheme = embedding_scheme, .lm_head = lm_head.get()};
  }
  std::int64_t num_bytes() const;  // bytes of the packed matrices, and of the table on a device
};

/// Called after each packed matrix with the source bytes done so far and in all; on any of the
/// packing threads, one call at a time.
using PackingProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Packs for `backend` and lets go of each matrix's mapped pages once it is packed, so that
/// resident memory stays near the size of the packed weights. Throws Error{kInvalidCheckpoint}.
PackedWeights pack_weights(const Checkpoint& checkpoint, const ModelWeights& weights,
                           const ops::Backend& backend, const PackingProgress& progress = {});

}  // namespace winnow
