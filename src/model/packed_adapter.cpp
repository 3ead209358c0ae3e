#include "model/packed_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <utility>

#include "base/error.h"
#include "checkpoint/lora_adapter.h"
#include "checkpoint/model_config.h"

namespace winnow {

namespace {

/// Projections that one fused matrix computes.
enum class Fused : std::uint8_t { kQkv, kOutput, kGateUp, kDown };

Fused fused_of(LoraProjection projection) {
  switch (projection) {
    case LoraProjection::kOutput:
      return Fused::kOutput;
    case LoraProjection::kGate:
    case LoraProjection::kUp:
    case LoraProjection::kGateUp:
      return Fused::kGateUp;
    case LoraProjection::kDown:
      return Fused::kDown;
    default:
      return Fused::kQkv;
  }
}

LoraProjection next(LoraProjection projection) {
  return static_cast<LoraProjection>(static_cast<std::uint8_t>(projection) + 1);
}

/// Rows in front of a projection's own in the fused matrix that it is part of: those of the
/// projections before it. gate_up is all of its matrix.
std::int64_t first_row_of(LoraTarget target, const ModelConfig& config) {
  const LoraProjection own = target.projection;
  if (own == LoraProjection::kGateUp) return 0;
  std::int64_t row = 0;
  for (target.projection = LoraProjection::kQ; target.projection < own;
       target.projection = next(target.projection)) {
    if (fused_of(target.projection) == fused_of(own)) row += lora_extent(target, config).outputs;
  }
  return row;
}

bool is_same_site(const LoraTarget& x, const LoraTarget& y) {
  return x.layer == y.layer && x.block == y.block && x.expert == y.expert &&
         fused_of(x.projection) == fused_of(y.projection);
}

ops::MatrixSource source_of(const LoraMatrix& matrix) {
  return {.scheme = matrix.scheme,
          .rows = matrix.rows,
          .cols = matrix.cols,
          .data = matrix.data.data()};
}

std::int64_t next_serial() {
  static std::atomic<std::int64_t> last{0};
  return ++last;
}

/// Values that a factor takes once it is packed: devices pad it (ops/linear/cuda_matrix.h).
std::int64_t num_values(const LoraFactor& factor, const ops::Memory& memory) {
  if (memory.is_host()) return factor.rows * factor.cols;
  return (factor.rows + 15) / 16 * 16 * ((factor.cols + 63) / 64 * 64);
}

/// +0 and -0 alike, in both formats.
bool is_zero(const LoraMatrix& matrix) {
  const std::size_t width = matrix.scheme == QuantScheme::kBF16 ? 2 : 4;
  for (std::size_t i = 0; i < matrix.data.size(); ++i) {
    const bool has_sign = i % width == width - 1;
    if ((matrix.data[i] & std::byte{has_sign ? std::uint8_t{0x7F} : std::uint8_t{0xFF}}) !=
        std::byte{0}) {
      return false;
    }
  }
  return true;
}

}  // namespace

class AdapterPacker {
 public:
  AdapterPacker(const LoraAdapter& adapter, const ModelConfig& config, const ops::Backend& backend,
                PackedAdapter& packed)
      : adapter_(adapter), config_(config), backend_(backend), packed_(packed) {}

  void run() {
    const std::vector<LoraPair>& pairs = adapter_.pairs();
    for (std::size_t begin = 0; begin < pairs.size();) {
      std::size_t end = begin + 1;
      while (end < pairs.size() && is_same_site(pairs[begin].target, pairs[end].target)) ++end;
      site_of(pairs[begin].target) = pack(std::span(pairs).subspan(begin, end - begin));
      begin = end;
    }
    if (!backend_.bind_lora) return;
    for (PackedAdapter::Layer& layer : packed_.layers_) bind(layer);
  }

 private:
  ops::LoraSite& site_of(const LoraTarget& target) {
    PackedAdapter::Layer& layer = packed_.layers_[static_cast<std::size_t>(target.layer)];
    const Fused fused = fused_of(target.projection);
    if (target.block == LoraBlock::kAttention) {
      return fused == Fused::kQkv ? layer.qkv : layer.output;
    }
    ops::LoraMlp& mlp = target.block == LoraBlock::kMlp            ? layer.mlp
                        : target.block == LoraBlock::kSharedExpert ? layer.moe.shared
                                                                   : expert_of(target, layer.moe);
    return fused == Fused::kGateUp ? mlp.gate_up : mlp.down;
  }

  ops::LoraMlp& expert_of(const LoraTarget& target, ops::LoraMoe& moe) {
    if (moe.experts.empty()) {
      packed_.experts_.emplace_back(static_cast<std::size_t>(config_.num_experts));
      moe.experts = packed_.experts_.back();
    }
    // Pairs come layer by layer, so the last list is this layer's.
    return packed_.experts_.back()[static_cast<std::size_t>(target.expert)];
  }

  void bind(PackedAdapter::Layer& layer) {
    for (ops::LoraSite* const site :
         {&layer.qkv, &layer.output, &layer.mlp.gate_up, &layer.mlp.down, &layer.moe.shared.gate_up,
          &layer.moe.shared.down}) {
      const ops::LoraSite* const alone[] = {site};
      site->table = bind(alone);
    }
    std::vector<const ops::LoraSite*> gate_ups;
    std::vector<const ops::LoraSite*> downs;
    for (const ops::LoraMlp& expert : layer.moe.experts) {
      gate_ups.push_back(&expert.gate_up);
      downs.push_back(&expert.down);
    }
    layer.moe.gate_up = bind(gate_ups);
    layer.moe.down = bind(downs);
  }

  /// Null where none of the sites adds anything.
  const ops::LoraTable* bind(std::span<const ops::LoraSite* const> sites) {
    const auto adds = [](const ops::LoraSite* site) { return site->a != nullptr; };
    if (std::ranges::none_of(sites, adds)) return nullptr;
    const auto& table = packed_.tables_.emplace_back(backend_.bind_lora(sites));
    packed_.num_bytes_ += table->num_bytes();
    return table.get();
  }

  ops::PackedMatrix* keep(std::unique_ptr<ops::PackedMatrix> matrix) {
    packed_.num_bytes_ += matrix->num_bytes();
    return packed_.matrices_.emplace_back(std::move(matrix)).get();
  }

  /// Pairs of one site. Those whose B is zero, as training starts them, add nothing and are left
  /// out.
  ops::LoraSite pack(std::span<const LoraPair> pairs) {
    std::vector<LoraMatrix> stack;
    std::vector<ops::LoraPart> parts;
    std::vector<float> scales;
    for (const LoraPair& pair : pairs) {
      const LoraMatrix b = adapter_.read(pair.b);
      if (is_zero(b)) continue;
      parts.push_back({.b = keep(backend_.pack(std::vector{source_of(b)})),
                       .first_rank = std::ssize(scales),
                       .first_row = first_row_of(pair.target, config_)});
      stack.push_back(adapter_.read(pair.a));
      scales.insert(scales.end(), static_cast<std::size_t>(pair.a.rows), pair.scale);
    }
    if (parts.empty()) return {};
    std::vector<ops::MatrixSource> sources;
    for (const LoraMatrix& matrix : stack) sources.push_back(source_of(matrix));
    const auto& kept_scales =
        packed_.scales_.emplace_back(backend_.memory, std::span<const float>(scales), "adapters");
    packed_.num_bytes_ += kept_scales.num_bytes();
    return {.a = keep(backend_.pack(sources)),
            .scales = kept_scales.data(),
            .parts = packed_.parts_.emplace_back(std::move(parts))};
  }

  const LoraAdapter& adapter_;
  const ModelConfig& config_;
  const ops::Backend& backend_;
  PackedAdapter& packed_;
};

PackedAdapter::PackedAdapter(const LoraAdapter& adapter, const ModelConfig& config,
                             const ops::Backend& backend)
    : memory_(backend.memory),
      layers_(static_cast<std::size_t>(config.num_layers)),
      fingerprint_(adapter.fingerprint()),
      rank_(adapter.rank()),
      serial_(next_serial()) {
  std::int64_t needed = 0;
  for (const LoraPair& pair : adapter.pairs()) {
    needed += (num_values(pair.a, *memory_) + num_values(pair.b, *memory_)) *
              (pair.a.tensor->dtype == DType::kBF16 ? 2 : 4);
  }
  const std::int64_t free_bytes = backend.memory->available_bytes();
  if (needed > free_bytes) {
    const auto gigabytes = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1e9; };
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("the adapter takes {:.2f} GB, {:.2f} GB are free", gigabytes(needed),
                            gigabytes(free_bytes)));
  }
  AdapterPacker(adapter, config, backend, *this).run();
}

}  // namespace winnow
