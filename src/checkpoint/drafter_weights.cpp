#include "checkpoint/drafter_weights.h"

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "checkpoint/tensor_reader.h"

namespace winnow {

namespace {

class DrafterLoader {
 public:
  DrafterLoader(const Checkpoint& checkpoint, const DrafterConfig& config,
                const WeightLoadOptions& options, ProblemList& problems)
      : checkpoint_(checkpoint),
        config_(config),
        names_(names_of(checkpoint, config.kind)),
        tensors_(checkpoint, options, problems),
        problems_(problems) {}

  DrafterWeights load() {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t rank = config_.markov_rank;
    DrafterWeights weights;
    weights.fc = tensors_.plain_matrix(names_.root + "fc", hidden, hidden * config_.num_streams(),
                                       "hidden_size × captured layers * hidden_size");
    weights.hidden_norm =
        tensors_.vector(names_.root + "hidden_norm.weight", hidden, "hidden_size");
    for (int i = 0; i < config_.num_layers; ++i) weights.layers.push_back(layer(i));
    weights.final_norm =
        tensors_.vector(names_.root + names_.final_norm + ".weight", hidden, "hidden_size");
    weights.markov_w1 = tensors_.plain_matrix(names_.root + "markov_head.markov_w1",
                                              config_.vocab_size, rank, "vocab_size × markov_rank");
    weights.markov_w2 = tensors_.plain_matrix(names_.root + "markov_head.markov_w2",
                                              config_.vocab_size, rank, "vocab_size × markov_rank");
    if (config_.has_confidence_head ||
        (is_qwen3() && has(names_.root + "confidence_head.proj.weight"))) {
      weights.confidence = tensors_.plain_matrix(
          names_.root + "confidence_head.proj", 1, config_.confidence_width(),
          config_.confidence_uses_markov ? "1 × hidden_size + markov_rank" : "1 × hidden_size");
      weights.confidence_bias = tensors_.vector(names_.root + "confidence_head.proj.bias", 1, "1");
    }
    if (is_qwen3()) load_own_tables(weights);
    refuse_the_rest();
    return weights;
  }

 private:
  /// What the two kinds call the same tensors.
  struct Names {
    std::string root;
    std::string of_layer;  // between a layer's number and its parts
    std::string final_norm;
    std::string ffn_width;  // the key of config.json
  };

  static Names names_of(const Checkpoint& checkpoint, DrafterKind kind) {
    if (kind == DrafterKind::kMinimax) {
      return {"language_model.model.dspark.", "decoder_layer.", "final_norm",
              "dspark_ffn_hidden_size"};
    }
    const bool is_nested = checkpoint.find("model.fc.weight").tensor != nullptr;
    return {is_nested ? "model." : "", "", "norm", "intermediate_size"};
  }

  bool is_qwen3() const { return config_.kind == DrafterKind::kQwen3; }
  bool has(const std::string& name) const { return checkpoint_.find(name).tensor != nullptr; }

  void load_own_tables(DrafterWeights& weights) {
    constexpr const char* kShape = "vocab_size × hidden_size";
    const std::string embed = names_.root + "embed_tokens";
    if (has(embed + ".weight")) {
      weights.embed = tensors_.plain_matrix(embed, config_.vocab_size, config_.hidden_size, kShape);
    }
    if (has("lm_head.weight")) {
      weights.lm_head = tensors_.matrix("lm_head", config_.vocab_size, config_.hidden_size, kShape);
    }
  }

  DrafterLayerWeights layer(int index) {
    const std::string prefix = fmt::format("{}layers.{}.{}", names_.root, index, names_.of_layer);
    const std::string attention = prefix + "self_attn.";
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t dim = config_.head_dim;
    const std::int64_t q_width = config_.num_heads * dim;
    const std::int64_t kv_width = config_.num_kv_heads * dim;
    const std::int64_t width = config_.ffn_width;
    constexpr const char* kOfKv = "num_key_value_heads * head_dim × hidden_size";
    const std::string of_ffn = names_.ffn_width + " × hidden_size";
    return {.input_norm = tensors_.vector(prefix + "input_layernorm.weight", hidden, "hidden_size"),
            .post_attention_norm =
                tensors_.vector(prefix + "post_attention_layernorm.weight", hidden, "hidden_size"),
            .q = tensors_.matrix(attention + "q_proj", q_width, hidden,
                                 "num_attention_heads * head_dim × hidden_size"),
            .k = tensors_.matrix(attention + "k_proj", kv_width, hidden, kOfKv),
            .v = tensors_.matrix(attention + "v_proj", kv_width, hidden, kOfKv),
            .o = tensors_.matrix(attention + "o_proj", hidden, q_width,
                                 "hidden_size × num_attention_heads * head_dim"),
            .q_norm = tensors_.vector(attention + "q_norm.weight", dim, "head_dim"),
            .k_norm = tensors_.vector(attention + "k_norm.weight", dim, "head_dim"),
            .mlp = {.gate = tensors_.matrix(prefix + "mlp.gate_proj", width, hidden, of_ffn),
                    .up = tensors_.matrix(prefix + "mlp.up_proj", width, hidden, of_ffn),
                    .down = tensors_.matrix(prefix + "mlp.down_proj", hidden, width,
                                            "hidden_size × " + names_.ffn_width)}};
  }

  void refuse_the_rest() {
    for (const std::string_view name : checkpoint_.names()) {
      if (tensors_.is_used(name)) continue;
      const std::string place = tensors_.at(std::string(name));
      if (name.find("embed_tokens") != std::string_view::npos ||
          name.find("lm_head") != std::string_view::npos) {
        problems_.add(fmt::format(
            "{}: expected no embedding and no lm_head in a drafter, which uses the target's",
            place));
        continue;
      }
      const StoredTensor& tensor = *checkpoint_.find(name).tensor;
      problems_.add(fmt::format("{} {} {} is not part of the drafter that config.json describes",
                                place, dtype_name(tensor.dtype), shape_text(tensor.shape)));
    }
  }

  const Checkpoint& checkpoint_;
  const DrafterConfig& config_;
  Names names_;
  TensorReader tensors_;
  ProblemList& problems_;
};

}  // namespace

DrafterWeights load_drafter_weights(const Checkpoint& checkpoint, const DrafterConfig& config,
                                    const WeightLoadOptions& options, ProblemList& problems) {
  ProblemList found;
  DrafterWeights weights = DrafterLoader(checkpoint, config, options, found).load();
  for (const std::string& problem : found.all()) {
    problems.add(fmt::format("{}/{}", kDrafterFolder, problem));
  }
  return weights;
}

DrafterWeights load_drafter_weights(const Checkpoint& checkpoint, const DrafterConfig& config,
                                    const WeightLoadOptions& options) {
  ProblemList problems;
  DrafterWeights weights = load_drafter_weights(checkpoint, config, options, problems);
  problems.throw_if_any(checkpoint.folder().string());
  return weights;
}

}  // namespace winnow
