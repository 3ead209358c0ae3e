#include "checkpoint/testing/random_adapter.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <variant>

#include "base/assert.h"
#include "base/random.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/weights.h"

namespace winnow {

namespace {

class AdapterWriter {
 public:
  AdapterWriter(const RandomCheckpoint& model, const RandomAdapter& adapter)
      : model_(model), adapter_(adapter) {}

  std::vector<AdapterDelta> run(const std::filesystem::path& folder) {
    for (std::size_t i = 0; i < model_.layers.size(); ++i) add_layer(i);
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "adapter_config.json")
        << fmt::format(R"({{"peft_type": "LORA", "r": {}, "lora_alpha": {}, "bias": "none",)"
                       R"( "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}})",
                       adapter_.rank, adapter_.alpha);
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const auto& [name, tensor] : tensors_) {
      tensors.push_back({name, DType::kF32, {tensor.rows, tensor.cols}});
    }
    SafetensorsWriter writer(folder / "adapter_model.safetensors", tensors);
    for (const auto& [name, tensor] : tensors_) {
      writer.append(name, std::as_bytes(std::span(tensor.values)));
    }
    writer.finish();
    return std::move(deltas_);
  }

 private:
  struct Tensor {
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::vector<float> values;
  };

  std::vector<float> draw(std::int64_t count, double deviation) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      const Philox4 r = philox4x32(adapter_.seed, {num_drawn_++, 0, 0, 0});
      value = static_cast<float>((uniform_open(r[0], r[1]) - 0.5) * std::sqrt(12.0) * deviation);
    }
    return values;
  }

  AdapterDelta draw_delta(const std::string& module, std::int64_t inputs, std::int64_t outputs) {
    const std::int64_t rank = adapter_.rank;
    const double scale = adapter_.alpha / adapter_.rank;
    return {.module = module,
            .rank = rank,
            .scale = scale,
            .a = draw(rank * inputs, 1.0 / std::sqrt(static_cast<double>(inputs))),
            .b = draw(outputs * rank, 0.3 / scale / std::sqrt(static_cast<double>(rank)))};
  }

  void put(const std::string& module, const std::string& half, Tensor tensor) {
    tensors_[fmt::format("base_model.model.{}.lora_{}.weight", module, half)] = std::move(tensor);
  }

  /// One module, under the name that the checkpoint has.
  void add(const std::string& module, std::int64_t inputs, std::int64_t outputs) {
    const AdapterDelta& delta = deltas_.emplace_back(draw_delta(module, inputs, outputs));
    put(module, "A", {adapter_.rank, inputs, delta.a});
    put(module, "B", {outputs, adapter_.rank, delta.b});
  }

  void add_gated(const std::string& prefix, std::int64_t width,
                 const std::array<const char*, 3>& names) {
    add(prefix + names[0], model_.hidden_size, width);
    add(prefix + names[1], model_.hidden_size, width);
    add(prefix + names[2], width, model_.hidden_size);
  }

  /// A pair for all experts: gate and up as one projection, or down.
  void add_stacked(const std::string& moe, bool is_down) {
    const std::int64_t rank = adapter_.rank;
    const std::int64_t experts = model_.num_experts;
    const std::int64_t width = model_.moe_intermediate;
    const std::int64_t inputs = is_down ? width : model_.hidden_size;
    const std::int64_t outputs = is_down ? model_.hidden_size : 2 * width;
    Tensor a{experts * rank, inputs, {}};
    Tensor b{outputs, experts * rank,
             std::vector<float>(static_cast<std::size_t>(outputs * experts * rank))};
    for (std::int64_t e = 0; e < experts; ++e) {
      const bool is_left_out = adapter_.experts == RandomAdapter::Experts::kOneAlone && e != 1;
      AdapterDelta delta = draw_delta("", inputs, outputs);
      a.values.insert(a.values.end(), delta.a.begin(), delta.a.end());
      if (is_left_out) continue;
      for (std::int64_t n = 0; n < outputs; ++n) {
        for (std::int64_t j = 0; j < rank; ++j) {
          b.values[static_cast<std::size_t>((n * rank + j) * experts + e)] =
              delta.b[static_cast<std::size_t>(n * rank + j)];
        }
      }
      const std::string expert = fmt::format("{}experts.{}.", moe, e);
      if (is_down) {
        delta.module = expert + "w2";
        deltas_.push_back(delta);
        continue;
      }
      const auto half = delta.b.begin() + width * rank;
      deltas_.push_back({expert + "w1", rank, delta.scale, delta.a, {delta.b.begin(), half}});
      deltas_.push_back({expert + "w3", rank, delta.scale, delta.a, {half, delta.b.end()}});
    }
    const std::string module = moe + (is_down ? "experts" : "experts.base_layer");
    put(module, "A", std::move(a));
    put(module, "B", std::move(b));
  }

  void add_layer(std::size_t index) {
    const LayerConfig& kind = model_.layers[index];
    const std::string prefix =
        fmt::format("{}model.layers.{}.", model_.flat_names ? "" : "language_model.", index);
    const std::int64_t hidden = model_.hidden_size;
    const std::int64_t dim = model_.head_dim;
    if (adapter_.on_attention) {
      const std::string attention = prefix + "self_attn.";
      add(attention + "q_proj", hidden, model_.num_heads * dim);
      add(attention + "k_proj", hidden, model_.num_kv_heads * dim);
      add(attention + "v_proj", hidden, model_.num_kv_heads * dim);
      add(attention + "o_proj", model_.num_heads * dim, hidden);
      if (kind.is_sparse_attention) {
        add(attention + "index_q_proj", hidden, model_.num_kv_heads * dim);
        add(attention + "index_k_proj", hidden, dim);
      }
    }
    if (!kind.is_moe) {
      if (adapter_.on_mlps) {
        add_gated(prefix + "mlp.", model_.dense_intermediate,
                  {"gate_proj", "up_proj", "down_proj"});
      }
      return;
    }
    const std::string moe = prefix + "block_sparse_moe.";
    if (adapter_.on_mlps) {
      add_gated(moe + "shared_experts.", model_.shared_intermediate,
                {"gate_proj", "up_proj", "down_proj"});
    }
    if (adapter_.experts == RandomAdapter::Experts::kNone) return;
    if (adapter_.experts != RandomAdapter::Experts::kOneByOne) {
      add_stacked(moe, false);
      add_stacked(moe, true);
      return;
    }
    for (int e = 0; e < model_.num_experts; ++e) {
      add_gated(fmt::format("{}experts.{}.", moe, e), model_.moe_intermediate, {"w1", "w3", "w2"});
    }
  }

  const RandomCheckpoint& model_;
  const RandomAdapter& adapter_;
  std::uint32_t num_drawn_ = 0;
  std::map<std::string, Tensor> tensors_;
  std::vector<AdapterDelta> deltas_;
};

template <typename Visit>
void for_each_matrix(const ModelWeights& weights, const Visit& visit) {
  const auto visit_mlp = [&](const GatedMlp& mlp) {
    for (const WeightMatrix* matrix : {&mlp.gate, &mlp.up, &mlp.down}) visit(*matrix);
  };
  visit(weights.embed);
  visit(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o}) visit(*matrix);
    if (layer.index) {
      visit(layer.index->q);
      visit(layer.index->k);
    }
    if (const auto* const mlp = std::get_if<GatedMlp>(&layer.mlp)) {
      visit_mlp(*mlp);
      continue;
    }
    const auto& moe = std::get<MoeWeights>(layer.mlp);
    visit(moe.router);
    for (const GatedMlp& expert : moe.experts) visit_mlp(expert);
    visit_mlp(moe.shared);
  }
}

void merge(const AdapterDelta& delta, std::int64_t inputs, std::vector<float>& weights) {
  const std::int64_t outputs = std::ssize(weights) / inputs;
  for (std::int64_t n = 0; n < outputs; ++n) {
    for (std::int64_t k = 0; k < inputs; ++k) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < delta.rank; ++j) {
        sum += double{delta.b[static_cast<std::size_t>(n * delta.rank + j)]} *
               double{delta.a[static_cast<std::size_t>(j * inputs + k)]};
      }
      float& weight = weights[static_cast<std::size_t>(n * inputs + k)];
      weight = static_cast<float>(double{weight} + delta.scale * sum);
    }
  }
}

}  // namespace

ModelConfig smallest_lora_target() {
  ModelConfig config;
  config.num_layers = 2;
  config.layers = {{.is_sparse_attention = false, .is_moe = false},
                   {.is_sparse_attention = true, .is_moe = true}};
  config.hidden_size = 8;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.index_num_heads = 1;
  config.index_head_dim = 4;
  config.dense_intermediate = 10;
  config.moe_intermediate = 6;
  config.shared_intermediate = 5;
  config.num_experts = 2;
  return config;
}

std::vector<AdapterDelta> write_random_adapter(const std::filesystem::path& folder,
                                               const RandomCheckpoint& model,
                                               const RandomAdapter& adapter) {
  return AdapterWriter(model, adapter).run(folder);
}

void write_merged_checkpoint(const std::filesystem::path& from,
                             const std::vector<AdapterDelta>& deltas,
                             const std::filesystem::path& to) {
  std::filesystem::create_directories(to);
  for (const char* name : {"config.json", "generation_config.json"}) {
    std::filesystem::copy_file(from / name, to / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  const Checkpoint checkpoint(from);
  const ModelWeights weights = load_weights(checkpoint, read_model_config(from));
  std::map<std::string, const AdapterDelta*> delta_of;
  for (const AdapterDelta& delta : deltas) delta_of[delta.module] = &delta;

  std::set<std::string, std::less<>> modules;
  std::vector<SafetensorsWriter::Tensor> tensors;
  for_each_matrix(weights, [&](const WeightMatrix& matrix) {
    modules.insert(matrix.name);
    tensors.push_back({matrix.name + ".weight", DType::kF32, {matrix.rows, matrix.cols}});
  });
  for (const AdapterDelta& delta : deltas) {
    WINNOW_ASSERT(modules.contains(delta.module), "a delta has its matrix", delta.module);
  }
  std::vector<std::string> vectors;  // norms and biases, as they are
  for (const std::string_view name : checkpoint.names()) {
    if (modules.contains(name.substr(0, name.rfind('.')))) continue;
    vectors.emplace_back(name);
    const TensorView view = checkpoint.view(name);
    tensors.push_back({vectors.back(), view.dtype, view.shape});
  }
  SafetensorsWriter writer(to / "model.safetensors", tensors);
  for (const std::string& name : vectors) {
    const TensorView view = checkpoint.view(name);
    writer.append(name, {view.data, static_cast<std::size_t>(view.num_bytes())});
  }
  for_each_matrix(weights, [&](const WeightMatrix& matrix) {
    std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
    dequantize_rows(matrix, 0, matrix.rows, values.data());
    const auto delta = delta_of.find(matrix.name);
    if (delta != delta_of.end()) merge(*delta->second, matrix.cols, values);
    writer.append(matrix.name + ".weight", std::as_bytes(std::span(values)));
  });
  writer.finish();
}

}  // namespace winnow
