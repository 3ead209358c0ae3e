#include "model/packed_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/thread_pool.h"
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

/// Lists what is to be packed and where it goes, then packs on several threads. A matrix depends on
/// its own source alone, so the number of threads changes nothing but the time.
class Packer {
 public:
  /// `target` must stay where it is until run() returns.
  void add(std::vector<const WeightMatrix*> stack, std::unique_ptr<ops::PackedMatrix>& target) {
    for (const WeightMatrix* matrix : stack) total_bytes_ += matrix->num_bytes();
    jobs_.push_back({.stack = std::move(stack), .target = &target});
  }

  void run(const Checkpoint& checkpoint, const ops::Backend& backend,
           const PackingProgress& progress) {
    ThreadPool pool;
    pool.parallel_for(std::ssize(jobs_), [&](std::int64_t i, int) {
      if (has_failed_.load()) return;
      const Job& job = jobs_[static_cast<std::size_t>(i)];
      try {
        std::vector<ops::MatrixSource> sources;
        for (const WeightMatrix* matrix : job.stack) sources.push_back(source_of(*matrix));
        *job.target = backend.pack(sources);
        for (const WeightMatrix* matrix : job.stack) drop_pages(checkpoint, *matrix);
        report(job, progress);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!has_failed_.exchange(true)) failure_ = std::current_exception();
      }
    });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  struct Job {
    std::vector<const WeightMatrix*> stack;
    std::unique_ptr<ops::PackedMatrix>* target = nullptr;
  };

  void report(const Job& job, const PackingProgress& progress) {
    const std::lock_guard lock(mutex_);
    for (const WeightMatrix* matrix : job.stack) done_bytes_ += matrix->num_bytes();
    if (progress) progress(done_bytes_, total_bytes_);
  }

  std::vector<Job> jobs_;
  std::int64_t total_bytes_ = 0;
  std::mutex mutex_;  // of the following
  std::int64_t done_bytes_ = 0;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;
};

void add_mlp(Packer& packer, const GatedMlp& mlp, PackedMlp& packed) {
  packer.add({&mlp.gate, &mlp.up}, packed.gate_up);
  packer.add({&mlp.down}, packed.down);
}

ops::Array<float> place(const ops::Backend& backend, const std::vector<float>& values) {
  return {backend.memory, std::span(values), "weights"};
}

void add_moe(Packer& packer, const ops::Backend& backend, const MoeWeights& moe,
             PackedMoe& packed) {
  packed.router_bias = place(backend, moe.router_bias);
  packer.add({&moe.router}, packed.router);
  packed.experts.resize(moe.experts.size());
  for (std::size_t e = 0; e < moe.experts.size(); ++e) {
    add_mlp(packer, moe.experts[e], packed.experts[e]);
  }
  if (moe.shared.gate.rows > 0) add_mlp(packer, moe.shared, packed.shared);
}

void add_layer(Packer& packer, const ops::Backend& backend, const LayerWeights& layer,
               PackedLayer& packed) {
  packed.input_norm = place(backend, layer.input_norm);
  packed.attention_norm = place(backend, layer.post_attention_norm);
  packed.q_norm = place(backend, layer.q_norm);
  packed.k_norm = place(backend, layer.k_norm);
  std::vector<const WeightMatrix*> qkv{&layer.q, &layer.k, &layer.v};
  if (layer.index) {
    packed.index_q_norm = place(backend, layer.index->q_norm);
    packed.index_k_norm = place(backend, layer.index->k_norm);
    qkv.insert(qkv.end(), {&layer.index->q, &layer.index->k});
  }
  packer.add(std::move(qkv), packed.qkv);
  packer.add({&layer.o}, packed.output);
  if (const auto* const mlp = std::get_if<GatedMlp>(&layer.mlp)) {
    add_mlp(packer, *mlp, packed.mlp);
  } else {
    add_moe(packer, backend, std::get<MoeWeights>(layer.mlp), packed.moe);
  }
}

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
  packed.final_norm = place(backend, weights.final_norm);
  packed.fingerprint = fingerprint_of(checkpoint);
  packed.layers.resize(weights.layers.size());
  Packer packer;
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
