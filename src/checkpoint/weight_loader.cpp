// Finds each tensor of the model under its names; see weights.h.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "checkpoint/tensor_reader.h"
#include "checkpoint/weights.h"

namespace winnow {

namespace {

// Why a tensor whose name has this segment is not read by the text model.
struct IgnoredSegment {
  std::string_view segment;
  const char* reason;
};
constexpr IgnoredSegment kIgnoredSegments[] = {
    {"vision_tower", "vision"},    {"multi_modal_projector", "vision"},
    {"patch_merge_mlp", "vision"}, {"mtp", "multi-token prediction"},
    {"dspark", "DSpark drafter"},
};

const char* reason_to_ignore(std::string_view name) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view segment = name.substr(begin, end - begin);
    for (const IgnoredSegment& ignored : kIgnoredSegments) {
      if (segment == ignored.segment) return ignored.reason;
    }
    begin = end + 1;
  }
  return nullptr;
}

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config,
               const WeightLoadOptions& options, ProblemList& problems)
      : checkpoint_(checkpoint),
        config_(config),
        tensors_(checkpoint, options, problems),
        problems_(problems) {}

  ModelWeights load();

 private:
  LayerWeights layer(int index);
  IndexWeights index_branch(const std::string& attention);
  GatedMlp dense_mlp(const std::string& prefix);
  MoeWeights moe(const std::string& prefix);
  void account_for_the_rest(ModelWeights& weights);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  TensorReader tensors_;
  ProblemList& problems_;
  std::string root_;  // "language_model." or ""
};

IndexWeights WeightLoader::index_branch(const std::string& attention) {
  const std::int64_t dim = config_.index_head_dim;
  return {
      .q = tensors_.matrix(attention + "index_q_proj", config_.index_num_heads * dim,
                           config_.hidden_size, "index_heads * index_head_dim × hidden_size"),
      .k = tensors_.matrix(attention + "index_k_proj", dim, config_.hidden_size,
                           "index_head_dim × hidden_size"),
      .q_norm = tensors_.vector(attention + "index_q_norm.weight", dim, "index_head_dim"),
      .k_norm = tensors_.vector(attention + "index_k_norm.weight", dim, "index_head_dim"),
  };
}

// `mlp.` as published; transformers saves a dense layer's under `block_sparse_moe.`.
GatedMlp WeightLoader::dense_mlp(const std::string& prefix) {
  const auto is_there = [&](std::string_view folder) {
    for (const char* suffix : {".weight", ".weight_packed"}) {
      if (checkpoint_.find(fmt::format("{}{}.gate_proj{}", prefix, folder, suffix)).tensor) {
        return true;
      }
    }
    return false;
  };
  const std::string base =
      prefix + (!is_there("mlp") && is_there("block_sparse_moe") ? "block_sparse_moe." : "mlp.");
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = config_.dense_intermediate;
  return {.gate = tensors_.matrix(base + "gate_proj", width, hidden,
                                  "dense_intermediate_size × hidden_size"),
          .up = tensors_.matrix(base + "up_proj", width, hidden,
                                "dense_intermediate_size × hidden_size"),
          .down = tensors_.matrix(base + "down_proj", hidden, width,
                                  "hidden_size × dense_intermediate_size")};
}

MoeWeights WeightLoader::moe(const std::string& prefix) {
  const std::string base = prefix + "block_sparse_moe.";
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = config_.moe_intermediate;
  MoeWeights moe;
  moe.router = tensors_.matrix(base + "gate", config_.num_experts, hidden,
                               "num_local_experts × hidden_size");
  moe.router_bias =
      tensors_.vector(base + "e_score_correction_bias", config_.num_experts, "num_local_experts");
  moe.experts.reserve(static_cast<std::size_t>(config_.num_experts));
  for (int e = 0; e < config_.num_experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", base, e);
    moe.experts.push_back(
        {.gate = tensors_.matrix(expert + "w1", width, hidden, "intermediate_size × hidden_size"),
         .up = tensors_.matrix(expert + "w3", width, hidden, "intermediate_size × hidden_size"),
         .down = tensors_.matrix(expert + "w2", hidden, width, "hidden_size × intermediate_size")});
  }
  const std::string shared = base + "shared_experts.";
  const std::int64_t shared_width = config_.shared_intermediate;
  moe.shared = {.gate = tensors_.matrix(shared + "gate_proj", shared_width, hidden,
                                        "shared_intermediate_size × hidden_size"),
                .up = tensors_.matrix(shared + "up_proj", shared_width, hidden,
                                      "shared_intermediate_size × hidden_size"),
                .down = tensors_.matrix(shared + "down_proj", hidden, shared_width,
                                        "hidden_size × shared_intermediate_size")};
  return moe;
}

LayerWeights WeightLoader::layer(int index) {
  const std::string prefix = fmt::format("{}model.layers.{}.", root_, index);
  const std::string attention = prefix + "self_attn.";
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t q_width = std::int64_t{config_.num_heads} * config_.head_dim;
  const std::int64_t kv_width = std::int64_t{config_.num_kv_heads} * config_.head_dim;
  const LayerConfig& kind = config_.layers[static_cast<std::size_t>(index)];
  LayerWeights layer;
  layer.input_norm = tensors_.vector(prefix + "input_layernorm.weight", hidden, "hidden_size");
  layer.post_attention_norm =
      tensors_.vector(prefix + "post_attention_layernorm.weight", hidden, "hidden_size");
  layer.q = tensors_.matrix(attention + "q_proj", q_width, hidden,
                            "num_attention_heads * head_dim × hidden_size");
  layer.k = tensors_.matrix(attention + "k_proj", kv_width, hidden,
                            "num_key_value_heads * head_dim × hidden_size");
  layer.v = tensors_.matrix(attention + "v_proj", kv_width, hidden,
                            "num_key_value_heads * head_dim × hidden_size");
  layer.o = tensors_.matrix(attention + "o_proj", hidden, q_width,
                            "hidden_size × num_attention_heads * head_dim");
  layer.q_norm = tensors_.vector(attention + "q_norm.weight", config_.head_dim, "head_dim");
  layer.k_norm = tensors_.vector(attention + "k_norm.weight", config_.head_dim, "head_dim");
  if (kind.is_sparse_attention) layer.index = index_branch(attention);
  if (kind.is_moe) {
    layer.mlp = moe(prefix);
  } else {
    layer.mlp = dense_mlp(prefix);
  }
  return layer;
}

// Whatever no part of the model has used must be ignored on purpose, or is a problem.
void WeightLoader::account_for_the_rest(ModelWeights& weights) {
  weights.ignored = tensors_.take_ignored();
  for (const std::string_view name : checkpoint_.names()) {
    if (tensors_.is_used(name)) continue;
    const Checkpoint::Location location = checkpoint_.find(name);
    if (const char* reason = reason_to_ignore(name)) {
      weights.ignored.push_back({std::string(name), location.tensor->num_bytes, reason, true});
      continue;
    }
    problems_.add(fmt::format("{}: {} {} {} is not part of the model that config.json describes",
                              location.file->path().filename().string(), printable(name),
                              dtype_name(location.tensor->dtype),
                              shape_text(location.tensor->shape)));
  }
}

ModelWeights WeightLoader::load() {
  ModelWeights weights;
  const bool is_nested =
      checkpoint_.find("language_model.model.norm.weight").tensor != nullptr ||
      checkpoint_.find("language_model.model.embed_tokens.weight").tensor != nullptr;
  const bool is_flat = checkpoint_.find("model.norm.weight").tensor != nullptr ||
                       checkpoint_.find("model.embed_tokens.weight").tensor != nullptr;
  root_ = is_nested || !is_flat ? "language_model." : "";

  const std::int64_t hidden = config_.hidden_size;
  weights.embed = tensors_.matrix(root_ + "model.embed_tokens", config_.vocab_size, hidden,
                                  "vocab_size × hidden_size");
  weights.layers.reserve(config_.layers.size());
  for (int i = 0; i < config_.num_layers; ++i) weights.layers.push_back(layer(i));
  weights.final_norm = tensors_.vector(root_ + "model.norm.weight", hidden, "hidden_size");
  const bool is_tied =
      config_.tie_word_embeddings && checkpoint_.find(root_ + "lm_head.weight").tensor == nullptr;
  weights.lm_head = is_tied ? weights.embed
                            : tensors_.matrix(root_ + "lm_head", config_.vocab_size, hidden,
                                              "vocab_size × hidden_size");
  account_for_the_rest(weights);
  return weights;
}

}  // namespace

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const WeightLoadOptions& options, ProblemList& problems) {
  return WeightLoader(checkpoint, config, options, problems).load();
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const WeightLoadOptions& options) {
  ProblemList problems;
  ModelWeights weights = load_weights(checkpoint, config, options, problems);
  problems.throw_if_any(checkpoint.folder().string());
  return weights;
}

}  // namespace winnow
