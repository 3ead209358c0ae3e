#include "checkpoint/testing/random_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/random.h"

namespace winnow {

namespace {

// FNV-1a: a tensor's stream of numbers is keyed by its name.
std::uint64_t hash_name(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 14695981039346656037ULL ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

// Sum of four uniforms, standard deviation 1.
float normal_like(std::uint64_t key, std::int64_t index) {
  const Philox4 r = philox4x32(
      key, {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0});
  double sum = 0;
  for (const std::uint32_t word : r) sum += static_cast<double>(word) * 0x1p-32 - 0.5;
  return static_cast<float>(sum * std::sqrt(3.0));
}

struct Entry {
  MatrixSpelling spelling = MatrixSpelling::kBF16;
  std::string name;  // of the module, or of the whole tensor for a vector
  std::int64_t rows = 0;
  std::int64_t cols = 0;  // 0 for a vector of `rows`
  float mean = 0.0F;      // of a vector
};

class Plan {
 public:
  explicit Plan(const RandomCheckpoint& options) : options_(options) {
    const std::string root = options.flat_names ? "" : "language_model.";
    matrix(options.embeddings, root + "model.embed_tokens", options.vocab_size,
           options.hidden_size);
    for (std::size_t i = 0; i < options.layers.size(); ++i) {
      layer(fmt::format("{}model.layers.{}.", root, i), options.layers[i]);
    }
    vector(root + "model.norm.weight", options.hidden_size);
    matrix(options.embeddings, root + "lm_head", options.vocab_size, options.hidden_size);
    if (options.with_vision) {
      vector("vision_tower.vision_model.pre_layrnorm.weight", 8);
      vector("multi_modal_projector.linear_1.weight", 16);
      vector("language_model.model.mtp.layers.0.norm.weight", 8);
    }
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void matrix(MatrixSpelling spelling, std::string name, std::int64_t rows, std::int64_t cols) {
    entries_.push_back({.spelling = spelling, .name = std::move(name), .rows = rows, .cols = cols});
  }
  void vector(std::string name, std::int64_t size, bool is_f32) {
    entries_.push_back({.spelling = is_f32 ? MatrixSpelling::kF32 : MatrixSpelling::kBF16,
                        .name = std::move(name),
                        .rows = size,
                        .cols = 0});
  }
  void vector(std::string name, std::int64_t size) {
    vector(std::move(name), size, options_.vectors_f32);
  }

  void layer(const std::string& prefix, const LayerConfig& kind) {
    const std::int64_t hidden = options_.hidden_size;
    const std::int64_t dim = options_.head_dim;
    const MatrixSpelling linear = options_.linears;
    const std::string attention = prefix + "self_attn.";
    vector(prefix + "input_layernorm.weight", hidden);
    vector(prefix + "post_attention_layernorm.weight", hidden);
    matrix(linear, attention + "q_proj", options_.num_heads * dim, hidden);
    matrix(linear, attention + "k_proj", options_.num_kv_heads * dim, hidden);
    matrix(linear, attention + "v_proj", options_.num_kv_heads * dim, hidden);
    matrix(linear, attention + "o_proj", hidden, options_.num_heads * dim);
    vector(attention + "q_norm.weight", dim);
    vector(attention + "k_norm.weight", dim);
    if (kind.is_sparse_attention) {
      matrix(linear, attention + "index_q_proj", options_.num_kv_heads * dim, hidden);
      matrix(linear, attention + "index_k_proj", dim, hidden);
      vector(attention + "index_q_norm.weight", dim);
      vector(attention + "index_k_norm.weight", dim);
    }
    if (!kind.is_moe) {
      const std::string mlp =
          prefix + (options_.dense_under_moe_name ? "block_sparse_moe." : "mlp.");
      gated(linear, mlp, {"gate_proj", "up_proj", "down_proj"}, options_.dense_intermediate);
      return;
    }
    const std::string moe = prefix + "block_sparse_moe.";
    matrix(options_.router, moe + "gate", options_.num_experts, hidden);
    vector(moe + "e_score_correction_bias", options_.num_experts, true);
    for (int e = 0; e < options_.num_experts; ++e) {
      gated(options_.experts, fmt::format("{}experts.{}.", moe, e), {"w1", "w3", "w2"},
            options_.moe_intermediate);
    }
    gated(linear, moe + "shared_experts.", {"gate_proj", "up_proj", "down_proj"},
          options_.shared_intermediate);
  }

  void gated(MatrixSpelling spelling, const std::string& prefix,
             const std::array<const char*, 3>& gate_up_down, std::int64_t width) {
    const std::int64_t hidden = options_.hidden_size;
    matrix(spelling, prefix + gate_up_down[0], width, hidden);
    matrix(spelling, prefix + gate_up_down[1], width, hidden);
    matrix(spelling, prefix + gate_up_down[2], hidden, width);
  }

  const RandomCheckpoint& options_;
  std::vector<Entry> entries_;
};

std::vector<Entry> drafter_entries(const RandomCheckpoint& target, const RandomDrafter& drafter) {
  std::vector<Entry> entries;
  const bool is_qwen3 = drafter.kind == DrafterKind::kQwen3;
  const std::string root = is_qwen3 ? "" : "language_model.model.dspark.";
  const std::int64_t hidden = target.hidden_size;
  const auto plain = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    // A norm that does not add 1 to its weights has them around 1.
    const float mean = is_qwen3 && name.ends_with("norm.weight") ? 1.0F : 0.0F;
    entries.push_back({MatrixSpelling::kBF16, root + name, rows, cols, mean});
  };
  plain("fc", hidden, hidden * std::ssize(drafter.target_layers));
  plain("hidden_norm.weight", hidden, 0);
  plain(is_qwen3 ? "norm.weight" : "final_norm.weight", hidden, 0);
  if (drafter.has_own_tables) {
    plain("embed_tokens", target.vocab_size, hidden);
    plain("lm_head", target.vocab_size, hidden);
  }
  plain("markov_head.markov_w1", target.vocab_size, drafter.markov_rank);
  plain("markov_head.markov_w2", target.vocab_size, drafter.markov_rank);
  if (drafter.has_confidence_head) {
    plain("confidence_head.proj", 1, hidden + drafter.markov_rank);
    plain("confidence_head.proj.bias", 1, 0);
  }
  const std::int64_t q_width = std::int64_t{drafter.num_heads} * drafter.head_dim;
  const std::int64_t kv_width = std::int64_t{drafter.num_kv_heads} * drafter.head_dim;
  for (std::int32_t i = 0; i < drafter.num_layers; ++i) {
    const std::string layer = fmt::format("layers.{}.{}", i, is_qwen3 ? "" : "decoder_layer.");
    const auto linear = [&](const char* name, std::int64_t rows, std::int64_t cols) {
      entries.push_back({drafter.linears, root + layer + name, rows, cols});
    };
    plain(layer + "input_layernorm.weight", hidden, 0);
    plain(layer + "post_attention_layernorm.weight", hidden, 0);
    linear("self_attn.q_proj", q_width, hidden);
    linear("self_attn.k_proj", kv_width, hidden);
    linear("self_attn.v_proj", kv_width, hidden);
    linear("self_attn.o_proj", hidden, q_width);
    plain(layer + "self_attn.q_norm.weight", drafter.head_dim, 0);
    plain(layer + "self_attn.k_norm.weight", drafter.head_dim, 0);
    linear("mlp.gate_proj", drafter.ffn_width, hidden);
    linear("mlp.up_proj", drafter.ffn_width, hidden);
    linear("mlp.down_proj", hidden, drafter.ffn_width);
  }
  return entries;
}

std::vector<float> values_of(const Entry& entry, const RandomCheckpoint& options) {
  const std::int64_t cols = std::max<std::int64_t>(entry.cols, 1);
  std::vector<float> values(static_cast<std::size_t>(entry.rows * cols));
  const std::uint64_t key = hash_name(entry.name, options.seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    values[i] = normal_like(key, index) *
                    (entry.cols > 0 ? 1.F / std::sqrt(static_cast<float>(cols)) : 0.1F) +
                entry.mean;
  }
  return values;
}

void write_shard(const std::filesystem::path& path, std::span<const Entry> entries,
                 const RandomCheckpoint& options, std::map<std::string, std::string>& weight_map) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::vector<std::unique_ptr<MatrixEncoder>> encoders;
  for (const Entry& entry : entries) {
    encoders.push_back(entry.cols > 0
                           ? std::make_unique<MatrixEncoder>(entry.spelling, entry.name, entry.rows,
                                                             entry.cols, kScalarCodecs)
                           : nullptr);
    if (encoders.back() != nullptr) {
      for (auto& tensor : encoders.back()->tensors()) tensors.push_back(std::move(tensor));
    } else {
      const DType dtype = entry.spelling == MatrixSpelling::kF32 ? DType::kF32 : DType::kBF16;
      tensors.push_back({entry.name, dtype, {entry.rows}});
    }
  }
  for (const auto& tensor : tensors) weight_map[tensor.name] = path.filename().string();
  SafetensorsWriter writer(path, tensors);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::vector<float> values = values_of(entries[i], options);
    if (encoders[i] != nullptr) {
      float largest = 0.F;
      for (const float value : values) largest = std::max(largest, std::fabs(value));
      encoders[i]->set_max_magnitude(largest);
      encoders[i]->append_rows(values, writer);
      encoders[i]->finish(writer);
    } else if (entries[i].spelling == MatrixSpelling::kF32) {
      writer.append(entries[i].name, std::as_bytes(std::span(values)));
    } else {
      std::vector<std::uint16_t> rounded(values.size());
      kScalarCodecs.encode_bf16(values.data(), rounded.data(),
                                static_cast<std::int64_t>(values.size()));
      writer.append(entries[i].name, std::as_bytes(std::span(rounded)));
    }
  }
  writer.finish();
}

nlohmann::ordered_json text_config(const RandomCheckpoint& options) {
  nlohmann::ordered_json text = {
      {"vocab_size", options.vocab_size},
      {"hidden_size", options.hidden_size},
      {"num_hidden_layers", options.layers.size()},
      {"num_attention_heads", options.num_heads},
      {"num_key_value_heads", options.num_kv_heads},
      {"head_dim", options.head_dim},
      {"rotary_dim", options.rotary_dim},
      {"intermediate_size", options.moe_intermediate},
      {"dense_intermediate_size", options.dense_intermediate},
      {"shared_intermediate_size", options.shared_intermediate},
      {"num_local_experts", options.num_experts},
      {"num_experts_per_tok", options.top_k_experts},
      {"routed_scaling_factor", options.routed_scaling_factor},
      {"swiglu_alpha", options.swiglu_alpha},
      {"swiglu_limit", options.swiglu_limit},
      {"rms_norm_eps", 1e-6},
      {"max_position_embeddings", options.max_position_embeddings},
      {"tie_word_embeddings", false},
  };
  std::vector<int> sparse, moe, disabled;
  std::vector<std::string> layer_types, mlp_types;
  for (const LayerConfig& layer : options.layers) {
    sparse.push_back(layer.is_sparse_attention ? 1 : 0);
    moe.push_back(layer.is_moe ? 1 : 0);
    layer_types.emplace_back(layer.is_sparse_attention ? "minimax_m3_sparse" : "full_attention");
    mlp_types.emplace_back(layer.is_moe ? "sparse" : "dense");
  }
  const double factor =
      static_cast<double>(options.rotary_dim) / static_cast<double>(options.head_dim);
  if (options.hugging_face_config) {
    text["model_type"] = "minimax_m3_vl_text";
    text["hidden_act"] = "silu";
    text["rope_parameters"] = {
        {"rope_type", "default"}, {"rope_theta", 5e6}, {"partial_rotary_factor", factor}};
    text["layer_types"] = layer_types;
    text["mlp_layer_types"] = mlp_types;
    text["index_n_heads"] = options.num_kv_heads;
    text["index_head_dim"] = options.head_dim;
    text["index_block_size"] = options.block_tokens;
    text["index_topk_blocks"] = options.top_k_blocks;
    text["index_local_blocks"] = 1;
    return text;
  }
  text["hidden_act"] = "swigluoai";
  text["rope_theta"] = 5000000;
  text["partial_rotary_factor"] = factor;
  text["use_gemma_norm"] = true;
  text["use_qk_norm"] = true;
  text["qk_norm_type"] = "per_head";
  text["attention_output_gate"] = false;
  text["n_shared_experts"] = 1;
  text["scoring_func"] = "sigmoid";
  text["use_routing_bias"] = true;
  text["moe_layer_freq"] = moe;
  text["sparse_attention_config"] = {{"use_sparse_attention", true},
                                     {"sparse_index_dim", options.head_dim},
                                     {"sparse_num_index_heads", options.num_kv_heads},
                                     {"sparse_topk_blocks", options.top_k_blocks},
                                     {"sparse_block_size", options.block_tokens},
                                     {"sparse_init_block", 0},
                                     {"sparse_local_block", 1},
                                     {"sparse_score_type", "max"},
                                     {"sparse_attention_freq", sparse},
                                     {"sparse_disable_index_value", sparse}};
  return text;
}

void write_json(const std::filesystem::path& path, const nlohmann::ordered_json& json) {
  std::ofstream(path) << json.dump(2) << '\n';
}

void write_config(const std::filesystem::path& folder, const RandomCheckpoint& options) {
  nlohmann::ordered_json config;
  config["architectures"] = {"MiniMaxM3SparseForConditionalGeneration"};
  config["model_type"] = "minimax_m3_vl";
  config["dtype"] = "bfloat16";
  config["text_config"] = text_config(options);
  const bool has_nvfp4 = options.experts == MatrixSpelling::kNvfp4Packed ||
                         options.experts == MatrixSpelling::kNvfp4ModelOpt;
  if (has_nvfp4 || options.linears == MatrixSpelling::kMxfp8 ||
      options.linears == MatrixSpelling::kMxfp8PlainScale || !options.kv_cache_quant_algo.empty()) {
    nlohmann::ordered_json quantization = {{"quant_method", "mxfp8"}};
    if (has_nvfp4) {
      quantization["moe_quant_algo"] = "NVFP4";
      quantization["moe_quant_format"] = "nvfp4-pack-quantized";
    }
    if (!options.kv_cache_quant_algo.empty()) {
      quantization["kv_cache_quant_algo"] = options.kv_cache_quant_algo;
    }
    config["quantization_config"] = quantization;
  }
  write_json(folder / "config.json", config);
  write_json(folder / "generation_config.json", {{"bos_token_id", 1}, {"eos_token_id", {2}}});
}

void write_qwen3_drafter_config(const std::filesystem::path& folder, const RandomCheckpoint& target,
                                const RandomDrafter& drafter) {
  const auto num_layers = static_cast<std::size_t>(drafter.num_layers);
  nlohmann::ordered_json config = {
      {"architectures", {"Qwen3DSparkModel"}},
      {"model_type", "qwen3"},
      {"num_hidden_layers", drafter.num_layers},
      {"hidden_size", target.hidden_size},
      {"vocab_size", target.vocab_size},
      {"num_attention_heads", drafter.num_heads},
      {"num_key_value_heads", drafter.num_kv_heads},
      {"head_dim", drafter.head_dim},
      {"intermediate_size", drafter.ffn_width},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"tie_word_embeddings", false},
      {"rope_theta", 5000000},
      {"rms_norm_eps", 1e-6},
      {"use_sliding_window", true},
      {"sliding_window", drafter.sliding_window},
      {"layer_types", std::vector<std::string>(num_layers, "sliding_attention")},
      {"block_size", drafter.block_size},
      {"mask_token_id", drafter.noise_token},
      {"target_layer_ids", drafter.target_layers},
      {"markov_rank", drafter.markov_rank},
      {"markov_head_type", "vanilla"},
      {"enable_confidence_head", drafter.has_confidence_head}};
  if (drafter.linears == MatrixSpelling::kMxfp8) {
    config["quantization_config"] = {{"quant_method", "mxfp8"}, {"weight_block_size", {1, 32}}};
  }
  write_json(folder / "config.json", config);
}

void write_drafter_config(const std::filesystem::path& folder, const RandomCheckpoint& target,
                          const RandomDrafter& drafter) {
  const auto num_layers = static_cast<std::size_t>(drafter.num_layers);
  nlohmann::ordered_json config;
  config["architectures"] = {"DSparkMiniMaxDraftModel"};
  config["text_config"] = {
      {"num_hidden_layers", drafter.num_layers},
      {"hidden_size", target.hidden_size},
      {"vocab_size", target.vocab_size},
      {"num_attention_heads", drafter.num_heads},
      {"num_key_value_heads", drafter.num_kv_heads},
      {"head_dim", drafter.head_dim},
      {"rotary_dim", drafter.rotary_dim},
      {"rope_theta", 5000000},
      {"rms_norm_eps", 1e-6},
      {"swiglu_alpha", target.swiglu_alpha},
      {"swiglu_limit", target.swiglu_limit},
      {"dense_intermediate_size", drafter.ffn_width},
      {"dspark_ffn_hidden_size", drafter.ffn_width},
      {"sliding_window", drafter.sliding_window},
      {"layer_types", std::vector<std::string>(num_layers, "sliding_attention")},
      {"moe_layer_freq", std::vector<int>(num_layers, 0)},
      {"dspark_block_size", drafter.block_size},
      {"dspark_markov_rank", drafter.markov_rank},
      {"dspark_markov_head_type", "vanilla"},
      {"dspark_noise_token_id", drafter.noise_token},
      {"dspark_target_layer_ids", drafter.target_layers},
      {"dspark_use_dense_ffn", true},
      {"dspark_hybrid_context_fusion", false},
      {"enable_confidence_head", drafter.has_confidence_head},
      {"confidence_head_with_markov", true},
      {"use_gemma_norm", true},
      {"sparse_attention_config", nullptr}};
  config["dspark_config"] = {{"hybrid_context_fusion", false}};
  if (drafter.linears == MatrixSpelling::kMxfp8) {
    config["quantization_config"] = {{"quant_method", "mxfp8"}, {"weight_block_size", {1, 32}}};
  }
  write_json(folder / "config.json", config);
}

void write_drafter(const std::filesystem::path& folder, const RandomCheckpoint& target,
                   const RandomDrafter& drafter) {
  std::filesystem::create_directories(folder);
  if (drafter.kind == DrafterKind::kQwen3) {
    write_qwen3_drafter_config(folder, target, drafter);
  } else {
    write_drafter_config(folder, target, drafter);
  }
  std::map<std::string, std::string> weight_map;
  write_shard(folder / "model.safetensors", drafter_entries(target, drafter), target, weight_map);
}

}  // namespace

float random_weight(const RandomCheckpoint& options, std::string_view module, std::int64_t row,
                    std::int64_t col, std::int64_t cols) {
  const std::uint64_t key = hash_name(module, options.seed);
  return normal_like(key, row * cols + col) * (1.F / std::sqrt(static_cast<float>(cols)));
}

RandomCheckpoint random_m31() {
  RandomCheckpoint options;
  options.hidden_size = 128;
  options.head_dim = 128;
  options.rotary_dim = 64;
  options.block_tokens = 128;
  options.top_k_blocks = 4;
  options.dense_intermediate = 256;
  options.moe_intermediate = 64;
  options.shared_intermediate = 64;
  options.num_experts = 8;
  options.experts = MatrixSpelling::kNvfp4Packed;
  options.linears = MatrixSpelling::kMxfp8;
  return options;
}

void write_random_checkpoint(const std::filesystem::path& folder, const RandomCheckpoint& options) {
  std::filesystem::create_directories(folder);
  write_config(folder, options);
  if (options.drafter) write_drafter(folder / "dspark", options, *options.drafter);
  const Plan plan(options);
  const std::span<const Entry> entries = plan.entries();
  std::map<std::string, std::string> weight_map;
  if (options.num_shards <= 1) {
    write_shard(folder / "model.safetensors", entries, options, weight_map);
    return;
  }
  const auto count = static_cast<std::size_t>(options.num_shards);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = entries.size() * i / count;
    const std::size_t end = entries.size() * (i + 1) / count;
    write_shard(folder / fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count),
                entries.subspan(begin, end - begin), options, weight_map);
  }
  write_json(folder / "model.safetensors.index.json",
             {{"metadata", nlohmann::ordered_json::object()}, {"weight_map", weight_map}});
}

}  // namespace winnow
