#include "model/packed_drafter.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "checkpoint/drafter_weights.h"
#include "model/weight_packer.h"

namespace winnow {
namespace {

std::int64_t element_bytes(QuantScheme scheme) { return scheme == QuantScheme::kF32 ? 4 : 2; }

/// Columns [first, first + count) of a matrix without scales.
std::unique_ptr<ops::PackedMatrix> pack_columns(const WeightMatrix& matrix, std::int64_t first,
                                                std::int64_t count, const ops::Backend& backend) {
  const std::int64_t bytes = element_bytes(matrix.scheme);
  std::vector<std::byte> columns(static_cast<std::size_t>(matrix.rows * count * bytes));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    std::memcpy(columns.data() + row * count * bytes,
                matrix.data.data + (row * matrix.cols + first) * bytes,
                static_cast<std::size_t>(count * bytes));
  }
  const ops::MatrixSource source{
      .scheme = matrix.scheme, .rows = matrix.rows, .cols = count, .data = columns.data()};
  return backend.pack(std::span(&source, 1));
}

void add_layer(WeightPacker& packer, const ops::Backend& backend, const DrafterLayerWeights& layer,
               PackedDrafterLayer& packed) {
  packed.input_norm = place_weights(backend, layer.input_norm);
  packed.attention_norm = place_weights(backend, layer.post_attention_norm);
  packed.q_norm = place_weights(backend, layer.q_norm);
  packed.k_norm = place_weights(backend, layer.k_norm);
  packer.add({&layer.q, &layer.k, &layer.v}, packed.qkv);
  packer.add({&layer.o}, packed.output);
  packer.add_mlp(layer.mlp, packed.mlp);
}

PackedTable place_table(const WeightMatrix& table, const ops::Backend& backend, const char* name) {
  PackedTable packed{.rows = table.data.data, .scheme = table.scheme, .copy = {}};
  if (backend.memory->is_host()) return packed;
  packed.copy = ops::Array<std::byte>(
      backend.memory, std::span(table.data.data, static_cast<std::size_t>(table.data.num_bytes())),
      name);
  packed.rows = packed.copy.data();
  return packed;
}

}  // namespace

PackedDrafter pack_drafter(const Checkpoint& checkpoint, const DrafterConfig& config,
                           const DrafterWeights& weights, const ops::Backend& backend,
                           const PackingProgress& progress) {
  PackedDrafter packed;
  packed.fingerprint = weights_fingerprint(checkpoint);
  packed.hidden_norm = place_weights(backend, weights.hidden_norm);
  packed.final_norm = place_weights(backend, weights.final_norm);
  for (std::int64_t i = 0; i < config.num_streams(); ++i) {
    packed.fc.push_back(
        pack_columns(weights.fc, i * config.hidden_size, config.hidden_size, backend));
  }
  drop_pages(checkpoint, weights.fc);
  if (weights.confidence.rows > 0) {
    packed.confidence_hidden = pack_columns(weights.confidence, 0, config.hidden_size, backend);
    if (config.confidence_uses_markov) {
      packed.confidence_markov =
          pack_columns(weights.confidence, config.hidden_size, config.markov_rank, backend);
    }
    packed.confidence_bias = weights.confidence_bias.front();
  }
  packed.markov_w1 = place_table(weights.markov_w1, backend, "the drafter's token table");
  if (weights.embed.rows > 0) {
    packed.embedding = place_table(weights.embed, backend, "the drafter's embedding table");
  }

  WeightPacker packer;
  std::vector<const WeightMatrix*> context;
  std::vector<float> k_norms;
  packed.layers.resize(weights.layers.size());
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const DrafterLayerWeights& layer = weights.layers[i];
    add_layer(packer, backend, layer, packed.layers[i]);
    context.insert(context.end(), {&layer.k, &layer.v});
    k_norms.insert(k_norms.end(), layer.k_norm.begin(), layer.k_norm.end());
  }
  packed.context_k_norm = place_weights(backend, k_norms);
  packer.add(std::move(context), packed.context_kv);
  packer.add({&weights.markov_w2}, packed.markov_w2);
  if (weights.lm_head.rows > 0) packer.add({&weights.lm_head}, packed.lm_head);
  packer.run(checkpoint, backend, progress);
  return packed;
}

SharedTables PackedDrafter::tables(const SharedTables& target) const {
  SharedTables tables = target;
  if (embedding.rows != nullptr) {
    tables.embedding = embedding.rows;
    tables.embedding_scheme = embedding.scheme;
  }
  if (lm_head != nullptr) tables.lm_head = lm_head.get();
  return tables;
}

std::int64_t PackedDrafter::num_bytes() const {
  std::int64_t total = markov_w1.copy.num_bytes() + embedding.copy.num_bytes();
  const auto add = [&](const std::unique_ptr<ops::PackedMatrix>& matrix) {
    if (matrix != nullptr) total += matrix->num_bytes();
  };
  for (const auto& part : fc) add(part);
  for (const PackedDrafterLayer& layer : layers) {
    for (const auto* matrix : {&layer.qkv, &layer.output, &layer.mlp.gate_up, &layer.mlp.down}) {
      add(*matrix);
    }
  }
  for (const auto* matrix :
       {&context_kv, &markov_w2, &confidence_hidden, &confidence_markov, &lm_head}) {
    add(*matrix);
  }
  return total;
}

}  // namespace winnow
