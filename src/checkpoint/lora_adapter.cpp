#include "checkpoint/lora_adapter.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/json_file.h"
#include "checkpoint/lora_config.h"
#include "formats/bf16.h"
#include "formats/fp16.h"

namespace winnow {

namespace {

constexpr const char* kTensorFile = "adapter_model.safetensors";

LoraExtent mlp_extent(LoraProjection projection, std::int64_t hidden, std::int64_t width) {
  if (projection == LoraProjection::kDown) return {width, hidden};
  return {hidden, projection == LoraProjection::kGateUp ? 2 * width : width};
}

LoraExtent attention_extent(LoraProjection projection, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q = std::int64_t{config.num_heads} * config.head_dim;
  const std::int64_t kv = std::int64_t{config.num_kv_heads} * config.head_dim;
  switch (projection) {
    case LoraProjection::kQ:
      return {hidden, q};
    case LoraProjection::kOutput:
      return {q, hidden};
    case LoraProjection::kIndexQ:
      return {hidden, std::int64_t{config.index_num_heads} * config.index_head_dim};
    case LoraProjection::kIndexK:
      return {hidden, config.index_head_dim};
    default:
      return {hidden, kv};
  }
}

/// Why the model has no such projection; empty: it has.
std::string absence_of(const LoraTarget& target, const ModelConfig& config) {
  if (target.layer >= config.num_layers) {
    return fmt::format("layer {} of {}", target.layer, config.num_layers);
  }
  const LayerConfig& layer = config.layers[static_cast<std::size_t>(target.layer)];
  const bool is_index =
      target.projection == LoraProjection::kIndexQ || target.projection == LoraProjection::kIndexK;
  if (is_index && !layer.is_sparse_attention) {
    return fmt::format("layer {} has no index branch", target.layer);
  }
  if (target.block == LoraBlock::kMlp && layer.is_moe) {
    return fmt::format("layer {} has experts, no dense MLP", target.layer);
  }
  if (target.block > LoraBlock::kMlp && !layer.is_moe) {
    return fmt::format("layer {} has a dense MLP, no experts", target.layer);
  }
  if (target.block == LoraBlock::kExpert && target.expert >= config.num_experts) {
    return fmt::format("expert {} of {}", target.expert, config.num_experts);
  }
  return {};
}

float element_at(const std::byte* data, DType dtype, std::int64_t index) {
  if (dtype == DType::kF32) {
    float value = 0.F;
    std::memcpy(&value, data + index * 4, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + index * 2, sizeof(bits));
  return dtype == DType::kBF16 ? decode_bf16(bits) : decode_fp16(bits);
}

template <typename Predicate>
bool all_values(const TensorView& view, const Predicate& predicate) {
  for (std::int64_t i = 0; i < view.num_elements(); ++i) {
    if (!predicate(element_at(view.data, view.dtype, i))) return false;
  }
  return true;
}

LoraFactor whole(const StoredTensor& tensor) {
  return {.tensor = &tensor,
          .rows = tensor.shape[0],
          .cols = tensor.shape[1],
          .row_stride = tensor.shape[1]};
}

/// Both tensors of one module; null: not in the file.
struct Halves {
  LoraName name;
  const StoredTensor* a = nullptr;
  const StoredTensor* b = nullptr;
};

/// Also of a path that no file system takes, which a client may send.
bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

std::unique_ptr<SafetensorsFile> open_tensors(const std::filesystem::path& folder,
                                              ProblemList& problems) {
  const std::filesystem::path path = folder / kTensorFile;
  if (!is_there(path)) {
    const bool is_pickled = is_there(folder / "adapter_model.bin");
    throw Error(
        is_pickled ? ErrorCode::kInvalidCheckpoint : ErrorCode::kNotFound,
        fmt::format("{}: no {}{}", printable(folder.string()), kTensorFile,
                    is_pickled ? ", and adapter_model.bin is a pickle, which can run code" : ""),
        is_pickled ? "save it with safe_serialization=True" : "");
  }
  return std::make_unique<SafetensorsFile>(path, problems);
}

}  // namespace

LoraExtent lora_extent(const LoraTarget& target, const ModelConfig& config) {
  switch (target.block) {
    case LoraBlock::kAttention:
      return attention_extent(target.projection, config);
    case LoraBlock::kMlp:
      return mlp_extent(target.projection, config.hidden_size, config.dense_intermediate);
    case LoraBlock::kSharedExpert:
      return mlp_extent(target.projection, config.hidden_size, config.shared_intermediate);
    default:
      return mlp_extent(target.projection, config.hidden_size, config.moe_intermediate);
  }
}

class LoraReader {
 public:
  LoraReader(LoraAdapter& adapter, const ModelConfig& config, std::int32_t max_rank,
             ProblemList& problems)
      : adapter_(adapter), config_(config), max_rank_(max_rank), problems_(problems) {}

  /// `lora` null: ranks and scales are not known, the rest is checked.
  void read(const LoraConfig* lora) {
    lora_ = lora;
    for (const auto& [module, halves] : collect()) read_module(halves);
    std::ranges::sort(adapter_.pairs_, {}, &LoraPair::target);
    check_overlaps();
    if (modules_ == 0 && problems_.empty()) {
      problems_.add(fmt::format("{}: no pair of lora_A and lora_B", kTensorFile));
    }
    if (problems_.empty()) add_fingerprint();
  }

 private:
  void problem(std::string_view name, std::string_view text) {
    problems_.add(fmt::format("{}: {}: {}", kTensorFile, printable(name), text));
  }

  /// By module; what is no half of a pair is a problem.
  std::map<std::string, Halves> collect() {
    std::map<std::string, Halves> modules;
    for (const StoredTensor& tensor : adapter_.file_->tensors()) {
      std::optional<LoraName> name = parse_lora_name(tensor.name);
      if (!name) {
        problem(tensor.name, tensor.name.find("lora_magnitude_vector") != std::string::npos
                                 ? "DoRA is not computed"
                                 : "neither lora_A.weight nor lora_B.weight of a module");
        continue;
      }
      Halves& halves = modules[name->module];
      (name->is_a ? halves.a : halves.b) = &tensor;
      halves.name = std::move(*name);
    }
    return modules;
  }

  bool is_readable(const StoredTensor& tensor) {
    const bool is_known =
        tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
    if (!is_known) {
      problem(tensor.name, fmt::format("{}, expected F32, F16 or BF16", dtype_name(tensor.dtype)));
    }
    const bool is_matrix = tensor.shape.size() == 2 && tensor.num_bytes > 0;
    if (!is_matrix) {
      problem(tensor.name, fmt::format("shape {}, expected a matrix", shape_text(tensor.shape)));
    }
    return is_known && is_matrix;
  }

  void read_module(const Halves& halves) {
    const std::string& module = halves.name.module;
    ++modules_;
    if (halves.a == nullptr || halves.b == nullptr) {
      problem(module, halves.a == nullptr ? "has lora_B.weight, no lora_A.weight"
                                          : "has lora_A.weight, no lora_B.weight");
      return;
    }
    const bool is_a_readable = is_readable(*halves.a);
    if (!is_readable(*halves.b) || !is_a_readable) return;
    const TensorView b = adapter_.file_->view(*halves.b);
    if (halves.name.is_vision && all_values(b, [](float x) { return x == 0.F; })) return;
    if (!halves.name.refusal.empty()) {
      problem(module, halves.name.refusal);
      return;
    }
    LoraTarget target = halves.name.target;
    if (const std::string absence = absence_of(target, config_); !absence.empty()) {
      problem(module, fmt::format("{}; is it an adapter of another model?", absence));
      return;
    }
    const LoraExtent stored{halves.a->shape[1], halves.b->shape[0]};
    const bool is_stacked = target.block == LoraBlock::kAllExperts;
    if (is_stacked) target.projection = stacked_projection(stored);
    const LoraExtent expected = lora_extent(target, config_);
    if (stored != expected) {
      problem(module,
              fmt::format("A reads {} inputs and B writes {} outputs, expected {} and {}",
                          stored.inputs, stored.outputs, expected.inputs, expected.outputs));
      return;
    }
    for (const StoredTensor* tensor : {halves.a, halves.b}) {
      const auto is_finite = [](float x) { return std::isfinite(x); };
      if (!all_values(adapter_.file_->view(*tensor), is_finite)) {
        problem(tensor->name, "holds values that are not finite");
      }
    }
    if (lora_ != nullptr) read_pairs(halves, target);
  }

  /// gate_up and down never have the same extents.
  LoraProjection stacked_projection(const LoraExtent& stored) const {
    const LoraTarget down{.block = LoraBlock::kAllExperts, .projection = LoraProjection::kDown};
    return stored == lora_extent(down, config_) ? LoraProjection::kDown : LoraProjection::kGateUp;
  }

  /// The pair of one module, or those of all experts.
  void read_pairs(const Halves& halves, LoraTarget target) {
    const std::string& module = halves.name.module;
    const bool is_stacked = target.block == LoraBlock::kAllExperts;
    const std::int64_t num_pairs = is_stacked ? config_.num_experts : 1;
    std::string pattern_name = lora_pattern_name(module);
    if (is_stacked) pattern_name += fmt::format(".{}", lora_projection_name(target.projection));
    LoraPair pair{.target = target, .a = whole(*halves.a), .b = whole(*halves.b)};
    std::int64_t rank = 0;
    try {
      rank = lora_->rank_of(pattern_name);
      pair.scale = lora_->scale_of(pattern_name);
    } catch (const Error& error) {
      problem(module, error.what());
      return;
    }
    if (pair.a.rows != rank * num_pairs || pair.b.cols != pair.a.rows) {
      problem(module,
              fmt::format(
                  "ranks {} of A and {} of B, expected {}{}", pair.a.rows, pair.b.cols, rank,
                  is_stacked ? fmt::format(" for each of {} experts", num_pairs) : std::string()));
      return;
    }
    if (rank > max_rank_) {
      problem(module, fmt::format("rank {}, at most {} are accepted", rank, max_rank_));
      return;
    }
    adapter_.rank_ = std::max(adapter_.rank_, static_cast<std::int32_t>(rank));
    if (!is_stacked) {
      adapter_.pairs_.push_back(pair);
      return;
    }
    pair.a.rows = pair.b.cols = rank;
    pair.b.col_stride = num_pairs;
    pair.target.block = LoraBlock::kExpert;
    for (std::int64_t e = 0; e < num_pairs; ++e) {
      pair.target.expert = static_cast<std::int32_t>(e);
      pair.a.first = e * rank * pair.a.cols;
      pair.b.first = e;
      adapter_.pairs_.push_back(pair);
    }
  }

  /// Two pairs of one projection, or of gate_up and of a half of it.
  void check_overlaps() {
    const std::vector<LoraPair>& pairs = adapter_.pairs_;
    for (std::size_t i = 1; i < pairs.size(); ++i) {
      const LoraTarget& previous = pairs[i - 1].target;
      const LoraTarget& target = pairs[i].target;
      // Sorted: gate and up come right before gate_up.
      const bool is_half = target.projection == LoraProjection::kGateUp &&
                           (previous.projection == LoraProjection::kGate ||
                            previous.projection == LoraProjection::kUp);
      LoraTarget same = previous;
      if (is_half) same.projection = LoraProjection::kGateUp;
      if (target != same) continue;
      problems_.add(fmt::format("{}: two pairs for {} of layer {}{}", kTensorFile,
                                lora_projection_name(target.projection), target.layer,
                                target.block == LoraBlock::kExpert
                                    ? fmt::format(", expert {}", target.expert)
                                    : std::string()));
    }
  }

  void add_fingerprint() {
    XXH3_state_t* const state = XXH3_createState();
    XXH3_64bits_reset(state);
    const auto add = [&](const void* data, std::size_t size) {
      const auto length = static_cast<std::uint64_t>(size);
      XXH3_64bits_update(state, &length, sizeof(length));
      XXH3_64bits_update(state, data, size);
    };
    for (const StoredTensor& tensor : adapter_.file_->tensors()) {
      add(tensor.name.data(), tensor.name.size());
      add(dtype_name(tensor.dtype).data(), dtype_name(tensor.dtype).size());
      add(tensor.shape.data(), tensor.shape.size() * sizeof(tensor.shape[0]));
      add(adapter_.file_->view(tensor).data, static_cast<std::size_t>(tensor.num_bytes));
    }
    for (const LoraPair& pair : adapter_.pairs_) add(&pair.scale, sizeof(pair.scale));
    adapter_.fingerprint_ = std::max<std::uint64_t>(1, XXH3_64bits_digest(state));
    XXH3_freeState(state);
  }

  LoraAdapter& adapter_;
  const ModelConfig& config_;
  std::int32_t max_rank_;
  ProblemList& problems_;
  const LoraConfig* lora_ = nullptr;
  std::int64_t modules_ = 0;
};

LoraAdapter::LoraAdapter(const std::filesystem::path& folder, const ModelConfig& config,
                         std::int32_t max_rank) {
  if (!is_there(folder / kLoraConfigFile)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: no {}", printable(folder.string()), kLoraConfigFile),
                "an adapter is a folder as PEFT's save_pretrained writes it");
  }
  ProblemList problems;
  const LoraConfig lora = parse_lora_config(read_json_object(folder / kLoraConfigFile), problems);
  const bool is_understood = problems.empty();
  ProblemList broken;  // where the file itself is, its tensors are not asked for more
  file_ = open_tensors(folder, broken);
  for (const std::string& text : broken.all()) problems.add(text);
  if (broken.empty()) {
    LoraReader(*this, config, max_rank, problems).read(is_understood ? &lora : nullptr);
  }
  problems.throw_if_any(folder.string(), "");
}

LoraMatrix LoraAdapter::read(const LoraFactor& factor) const {
  const TensorView view = file_->view(*factor.tensor);
  const bool keeps = view.dtype == DType::kBF16;
  LoraMatrix matrix{.scheme = keeps ? QuantScheme::kBF16 : QuantScheme::kF32,
                    .rows = factor.rows,
                    .cols = factor.cols,
                    .data = {}};
  const std::int64_t width = keeps ? 2 : 4;
  matrix.data.resize(static_cast<std::size_t>(factor.rows * factor.cols * width));
  std::byte* out = matrix.data.data();
  for (std::int64_t row = 0; row < factor.rows; ++row) {
    for (std::int64_t col = 0; col < factor.cols; ++col, out += width) {
      const std::int64_t index = factor.first + row * factor.row_stride + col * factor.col_stride;
      if (keeps) {
        std::memcpy(out, view.data + index * 2, 2);
      } else {
        const float value = element_at(view.data, view.dtype, index);
        std::memcpy(out, &value, sizeof(value));
      }
    }
  }
  return matrix;
}

}  // namespace winnow
