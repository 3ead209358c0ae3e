#include "model/packed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/error.h"
#include "checkpoint/weights.h"
#include "model/weight_packer.h"

namespace winnow {
namespace {

void add_moe(WeightPacker& packer, const ops::Backend& backend, const MoeWeights& moe,
             PackedMoe& packed) {
  packed.router_bias = place_weights(backend, moe.router_bias);
  packer.add({&moe.router}, packed.router);
  packed.experts.resize(moe.experts.size());
  for (std::size_t e = 0; e < moe.experts.size(); ++e) {
    packer.add_mlp(moe.experts[e], packed.experts[e]);
  }
  if (moe.shared.gate.rows > 0) packer.add_mlp(moe.shared, packed.shared);
}

void add_layer(WeightPacker& packer, const ops::Backend& backend, const LayerWeights& layer,
               PackedLayer& packed) {
  packed.input_norm = place_weights(backend, layer.input_norm);
  packed.attention_norm = place_weights(backend, layer.post_attention_norm);
  packed.q_norm = place_weights(backend, layer.q_norm);
  packed.k_norm = place_weights(backend, layer.k_norm);
  std::vector<const WeightMatrix*> qkv{&layer.q, &layer.k, &layer.v};
  if (layer.index) {
    packed.index_q_norm = place_weights(backend, layer.index->q_norm);
    packed.index_k_norm = place_weights(backend, layer.index->k_norm);
    qkv.insert(qkv.end(), {&layer.index->q, &layer.index->k});
  }
  packer.add(std::move(qkv), packed.qkv);
  packer.add({&layer.o}, packed.output);
  if (const auto* const mlp = std::get_if<GatedMlp>(&layer.mlp)) {
    packer.add_mlp(*mlp, packed.mlp);
  } else {
    add_moe(packer, backend, std::get<MoeWeights>(layer.mlp), packed.moe);
  }
}

std::int64_t bytes_of(const PackedMlp& mlp) {
  return (mlp.gate_up ? mlp.gate_up->num_bytes() : 0) + (mlp.down ? mlp.down->num_bytes() : 0);
}

}  // namespace

PackedWeights pack_weights(const Checkpoint& checkpoint, const ModelWeights& weights,
                           const ops::Backend& backend, const PackingProgress& progress) {
  const WeightMatrix& embed = weights.embed;
  if (embed.scheme != QuantScheme::kF32 && embed.scheme != QuantScheme::kBF16) {
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: a quantised embedding table is not read", embed.name));
  }
  PackedWeights packed;
  packed.embedding = embed.data.data;
  if (!backend.memory->is_host()) {
    packed.embedding_copy = ops::Array<std::byte>(
        backend.memory,
        std::span(embed.data.data, static_cast<std::size_t>(embed.data.num_bytes())),
        "the embedding table");
    packed.embedding = packed.embedding_copy.data();
  }
  packed.embedding_scheme = embed.scheme;
  packed.final_norm = place_weights(backend, weights.final_norm);
  packed.fingerprint = weights_fingerprint(checkpoint);
  packed.layers.resize(weights.layers.size());
  WeightPacker packer;
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    add_layer(packer, backend, weights.layers[i], packed.layers[i]);
  }
  packer.add({&weights.lm_head}, packed.lm_head);
  packer.run(checkpoint, backend, progress);
  for (PackedLayer& layer : packed.layers) {
    for (const PackedMlp& expert : layer.moe.experts) {
      layer.moe.expert_views.push_back(expert.view());
    }
    if (backend.bind_experts && !layer.moe.experts.empty()) {
      layer.moe.table = backend.bind_experts(layer.moe.expert_views, layer.moe.shared.view());
    }
  }
  return packed;
}

std::int64_t PackedWeights::num_bytes() const {
  std::int64_t total = lm_head->num_bytes() + embedding_copy.num_bytes();
  for (const PackedLayer& layer : layers) {
    total += layer.qkv->num_bytes() + layer.output->num_bytes() + bytes_of(layer.mlp) +
             bytes_of(layer.moe.shared);
    if (layer.moe.router) total += layer.moe.router->num_bytes();
    for (const PackedMlp& expert : layer.moe.experts) total += bytes_of(expert);
  }
  return total;
}

}  // namespace winnow
