#include "model/golden.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"

namespace winnow {
namespace {

using Shape = std::vector<std::int64_t>;

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  template <typename T>
  std::vector<T> read(const std::string& name, const Shape& shape) const {
    const TensorView view = file_.view(name);
    constexpr DType kDType = std::is_same_v<T, float> ? DType::kF32 : DType::kI32;
    if (view.dtype != kDType || view.shape != shape) {
      throw Error(ErrorCode::kInvalidCheckpoint,
                  fmt::format("golden.safetensors: {} is {} {}, expected {} {}", name,
                              dtype_name(view.dtype), shape_text(view.shape), dtype_name(kDType),
                              shape_text(shape)));
    }
    std::vector<T> values(static_cast<std::size_t>(view.num_elements()));
    if (!values.empty()) {
      std::memcpy(values.data(), view.data, static_cast<std::size_t>(view.num_bytes()));
    }
    return values;
  }

  /// Length of the last dimension, for tensors whose size nothing else gives.
  std::int64_t length(const std::string& name) const {
    const TensorView view = file_.view(name);
    return view.shape.empty() ? 0 : view.shape.back();
  }

 private:
  SafetensorsFile file_;
};

void require_below(const std::vector<std::int32_t>& values, std::int64_t end, const char* name) {
  for (const std::int32_t value : values) {
    if (value >= 0 && value < end) continue;
    throw Error(
        ErrorCode::kInvalidCheckpoint,
        fmt::format("golden.safetensors: {} holds {}, expected 0 to {}", name, value, end - 1));
  }
}

/// Lists of [heads][tokens][top_k]: a query sees its own block and earlier ones.
void require_blocks(const std::vector<std::int32_t>& blocks, const ModelConfig& config,
                    std::size_t num_tokens) {
  const auto top_k = static_cast<std::size_t>(config.top_k_blocks);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i / top_k % num_tokens);
    if (blocks[i] >= -1 && blocks[i] <= position / config.block_tokens) continue;
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("golden.safetensors: block {} for the token at position {}", blocks[i],
                            position));
  }
}

void read_layers(const Reader& reader, const ModelConfig& config, Golden& golden) {
  const auto num_tokens = std::ssize(golden.prompt);
  const auto num_positions = std::ssize(golden.positions);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const LayerConfig& kind = config.layers[static_cast<std::size_t>(layer)];
    const auto name = [&](const char* what) { return fmt::format("{}.{}", what, layer); };
    golden.hidden[layer] = reader.read<float>(name("hidden"), {num_positions, config.hidden_size});
    if (kind.is_sparse_attention) {
      golden.blocks[layer] = reader.read<std::int32_t>(
          name("blocks"), {config.index_num_heads, num_tokens, config.top_k_blocks});
      require_blocks(golden.blocks[layer], config, golden.prompt.size());
    }
    if (kind.is_moe) {
      golden.experts[layer] =
          reader.read<std::int32_t>(name("router_index"), {num_tokens, config.top_k_experts});
      require_below(golden.experts[layer], config.num_experts, "router_index");
      golden.expert_weights[layer] =
          reader.read<float>(name("router_weight"), {num_tokens, config.top_k_experts});
    }
  }
}

}  // namespace

Golden read_golden(const std::filesystem::path& path, const ModelConfig& config) {
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: no such file", path.string()),
                "check needs the public implementation's outputs; see tests/golden/README.md");
  }
  const Reader reader(path);
  Golden golden;
  golden.prompt = reader.read<std::int32_t>("input_ids", {1, reader.length("input_ids")});
  golden.positions = reader.read<std::int32_t>("positions", {reader.length("positions")});
  require_below(golden.prompt, config.vocab_size, "input_ids");
  require_below(golden.positions, std::ssize(golden.prompt), "positions");
  golden.logits = reader.read<float>("logits", {std::ssize(golden.positions), config.vocab_size});
  read_layers(reader, config, golden);
  if (reader.has("greedy_tokens")) {
    golden.greedy_tokens =
        reader.read<std::int32_t>("greedy_tokens", {reader.length("greedy_tokens")});
    require_below(golden.greedy_tokens, config.vocab_size, "greedy_tokens");
    golden.greedy_logits =
        reader.read<float>("greedy_logits", {std::ssize(golden.greedy_tokens), config.vocab_size});
  }
  return golden;
}

}  // namespace winnow
