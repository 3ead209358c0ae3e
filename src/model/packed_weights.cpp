#include "model/packed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <variant>

#include "base/error.h"
#include "checkpoint/weights.h"

namespace winnow {
namespace {

ops::MatrixSource source_of(const WeightMatrix& matrix) {
  return {.scheme = matrix.scheme,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .data = matrix.data.data,
          .scales = reinterpret_cast<const std::uint8_t*>(matrix.scales.data),
          .matrix_scale = matrix.global_scale};
}

/// Calls `visit` with every matrix of the model but the embedding table.
template <typename Visit>
void for_each_matrix(const ModelWeights& weights, const Visit& visit) {
  const auto visit_mlp = [&](const GatedMlp& mlp) {
    for (const WeightMatrix* matrix : {&mlp.gate, &mlp.up, &mlp.down}) visit(*matrix);
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o}) visit(*matrix);
    if (layer.index) {
      visit(layer.index->q);
      visit(layer.index->k);
    }
    if (const auto* const mlp = std::get_if<GatedMlp>(&layer.mlp)) {
      visit_mlp(*mlp);
    } else {
      const auto& moe = std::get<MoeWeights>(layer.mlp);
      visit(moe.router);
      for (const GatedMlp& expert : moe.experts) visit_mlp(expert);
      visit_mlp(moe.shared);
    }
  }
  visit(weights.lm_head);
}

class Packer {
 public:
  Packer(const Checkpoint& checkpoint, const ModelWeights& weights, const ops::Backend& backend,
         const PackingProgress& progress)
      : checkpoint_(checkpoint), backend_(backend), progress_(progress) {
    for_each_matrix(weights, [&](const WeightMatrix& matrix) { total_ += matrix.num_bytes(); });
  }

  std::unique_ptr<ops::PackedMatrix> pack(std::initializer_list<const WeightMatrix*> stack) {
    return pack(std::span(stack.begin(), stack.size()));
  }

  std::unique_ptr<ops::PackedMatrix> pack(std::span<const WeightMatrix* const> stack) {
    std::vector<ops::MatrixSource> sources;
    for (const WeightMatrix* matrix : stack) sources.push_back(source_of(*matrix));
    std::unique_ptr<ops::PackedMatrix> packed = backend_.pack(sources);
    for (const WeightMatrix* matrix : stack) {
      drop_pages(checkpoint_, *matrix);
      done_ += matrix->num_bytes();
    }
    if (progress_) progress_(done_, total_);
    return packed;
  }

  PackedMlp pack_mlp(const GatedMlp& mlp) {
    return {.gate_up = pack({&mlp.gate, &mlp.up}), .down = pack({&mlp.down})};
  }

  PackedMoe pack_moe(const MoeWeights& moe) {
    PackedMoe packed{.router = pack({&moe.router}),
                     .router_bias = moe.router_bias,
                     .experts = {},
                     .expert_views = {},
                     .shared = {}};
    for (const GatedMlp& expert : moe.experts) {
      packed.experts.push_back(pack_mlp(expert));
      packed.expert_views.push_back(packed.experts.back().view());
    }
    if (moe.shared.gate.rows > 0) packed.shared = pack_mlp(moe.shared);
    return packed;
  }

  PackedLayer pack_layer(const LayerWeights& layer) {
    PackedLayer packed{.input_norm = layer.input_norm,
                       .attention_norm = layer.post_attention_norm,
                       .q_norm = layer.q_norm,
                       .k_norm = layer.k_norm,
                       .index_q_norm = {},
                       .index_k_norm = {},
                       .qkv = {},
                       .output = {},
                       .mlp = {},
                       .moe = {}};
    std::vector<const WeightMatrix*> qkv{&layer.q, &layer.k, &layer.v};
    if (layer.index) {
      packed.index_q_norm = layer.index->q_norm;
      packed.index_k_norm = layer.index->k_norm;
      qkv.insert(qkv.end(), {&layer.index->q, &layer.index->k});
    }
    packed.qkv = pack(qkv);
    packed.output = pack({&layer.o});
    if (const auto* const mlp = std::get_if<GatedMlp>(&layer.mlp)) {
      packed.mlp = pack_mlp(*mlp);
    } else {
      packed.moe = pack_moe(std::get<MoeWeights>(layer.mlp));
    }
    return packed;
  }

 private:
  const Checkpoint& checkpoint_;
  const ops::Backend& backend_;
  const PackingProgress& progress_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

/// FNV-1a over each tensor's name and its first and last bytes: other weights give another value,
/// without reading all of a large checkpoint.
std::uint64_t fingerprint_of(const Checkpoint& checkpoint) {
  constexpr std::size_t kSampleBytes = 64;
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto mix = [&](std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3U;
    }
  };
  for (const std::string_view name : checkpoint.names()) {
    const TensorView view = checkpoint.view(name);
    mix(std::as_bytes(std::span(name)));
    const std::span bytes(view.data, static_cast<std::size_t>(view.num_bytes()));
    const std::size_t sample = std::min(kSampleBytes, bytes.size());
    mix(bytes.first(sample));
    mix(bytes.last(sample));
  }
  return hash;
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
  Packer packer(checkpoint, weights, backend, progress);
  PackedWeights packed{.embedding = embed.data.data,
                       .embedding_scheme = embed.scheme,
                       .final_norm = weights.final_norm,
                       .lm_head = {},
                       .layers = {},
                       .fingerprint = fingerprint_of(checkpoint)};
  for (const LayerWeights& layer : weights.layers)
    packed.layers.push_back(packer.pack_layer(layer));
  packed.lm_head = packer.pack({&weights.lm_head});
  return packed;
}

std::int64_t PackedWeights::num_bytes() const {
  std::int64_t total = lm_head->num_bytes();
  for (const PackedLayer& layer : layers) {
    total += layer.qkv->num_bytes() + layer.output->num_bytes() + bytes_of(layer.mlp) +
             bytes_of(layer.moe.shared);
    if (layer.moe.router) total += layer.moe.router->num_bytes();
    for (const PackedMlp& expert : layer.moe.experts) total += bytes_of(expert);
  }
  return total;
}

}  // namespace winnow
