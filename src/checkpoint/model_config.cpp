#include "checkpoint/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"

namespace winnow {

namespace {

using nlohmann::json;

// Upper bounds that keep products of sizes far inside 64 bits; each is well above any real model.
constexpr std::int32_t kMaxWidth = 1 << 20;
constexpr std::int32_t kMaxLayers = 1024;
constexpr std::int32_t kMaxHeads = 1024;
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr std::int32_t kMaxExperts = 4096;
constexpr std::int32_t kMaxBlockTokens = 4096;

constexpr TokenId kPublishedVocab = 200064;  // whose bos and eos ids are known without a file
constexpr TokenId kPublishedBos = 200034;
constexpr TokenId kPublishedEos = 200020;

std::optional<bool> flag_of_number(const json& entry) {
  if (entry == 0 || entry == 1) return entry == 1;
  return std::nullopt;
}

// One yes/no choice per layer in its two spellings: a list of 0/1, and a list of names.
struct LayerChoice {
  const ConfigReader& numbers;
  const char* number_key;
  const ConfigReader& names;
  const char* name_key;
  const char* no;
  const char* yes;
  bool if_absent;  // when neither list is there
};

std::vector<bool> layer_flags(const LayerChoice& choice, std::size_t num_layers) {
  std::vector<bool> by_number =
      choice.numbers.per_layer(choice.number_key, num_layers, "0 or 1", flag_of_number);
  std::vector<bool> by_name = choice.names.per_layer(
      choice.name_key, num_layers, fmt::format("\"{}\" or \"{}\"", choice.no, choice.yes),
      [&](const json& entry) -> std::optional<bool> {
        if (entry == choice.no || entry == choice.yes) return entry == choice.yes;
        return std::nullopt;
      });
  if (!by_number.empty() && !by_name.empty() && by_number != by_name) {
    choice.names.problem(fmt::format("{} and {} disagree", choice.number_key, choice.name_key));
  }
  if (!by_number.empty()) return by_number;
  if (!by_name.empty()) return by_name;
  return std::vector<bool>(num_layers, choice.if_absent);
}

void read_attention(const ConfigReader& text, ModelConfig& config, ProblemList& problems) {
  config.num_heads = text.count({"num_attention_heads"}, kMaxHeads);
  config.num_kv_heads = text.count({"num_key_value_heads"}, kMaxHeads);
  config.head_dim = text.count({"head_dim"}, kMaxHeadDim);
  if (config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads != 0) {
    text.problem(
        fmt::format("num_attention_heads is {}, expected a multiple of num_key_value_heads "
                    "({})",
                    config.num_heads, config.num_kv_heads));
  }
  text.must_be("use_qk_norm", true);
  text.must_be("qk_norm_type", "per_head");
  text.must_be("attention_output_gate", false);
  text.must_be("attention_bias", false);

  const ConfigReader rope(object_or_empty(text.value("rope_parameters")),
                          "text_config.rope_parameters.", problems);
  rope.must_be("rope_type", "default");
  if (const json* scaling = text.value("rope_scaling"); scaling != nullptr) {
    const ConfigReader reader(object_or_empty(scaling), "text_config.rope_scaling.", problems);
    reader.must_be("rope_type", "default");
    reader.must_be("type", "default");
    if (!scaling->is_object()) text.refuse("rope_scaling", *scaling, "null");
  }
  if (rope.has("rope_theta") && text.has("rope_theta") &&
      *rope.value("rope_theta") != *text.value("rope_theta")) {
    text.problem("rope_theta and rope_parameters.rope_theta disagree");
  }
  config.rope_theta =
      rope.has("rope_theta") ? rope.positive({"rope_theta"}) : text.positive({"rope_theta"});

  // transformers turns head_dim × partial_rotary_factor dims and ignores rotary_dim; others read
  // rotary_dim. A file in which they differ means two models (spec/model.md trap 6).
  std::optional<double> factor = rope.number("partial_rotary_factor");
  if (!factor) factor = text.number("partial_rotary_factor");
  const std::optional<double> by_factor =
      factor ? std::optional(std::floor(*factor * config.head_dim)) : std::nullopt;
  if (text.has("rotary_dim")) {
    config.rotary_dim = text.count({"rotary_dim"}, kMaxHeadDim);
    if (by_factor && *by_factor != config.rotary_dim) {
      text.problem(
          fmt::format("rotary_dim is {} but partial_rotary_factor {} × head_dim {} is {}; "
                      "expected one value",
                      config.rotary_dim, *factor, config.head_dim, *by_factor));
    }
  } else if (by_factor && *by_factor >= 0 && *by_factor <= kMaxHeadDim) {
    config.rotary_dim = static_cast<std::int32_t>(*by_factor);
  } else {
    text.problem("text_config.rotary_dim or partial_rotary_factor is missing");
  }
  if (config.rotary_dim % 2 != 0 || config.rotary_dim > config.head_dim) {
    text.problem(fmt::format("rotary_dim is {}, expected an even number up to head_dim ({})",
                             config.rotary_dim, config.head_dim));
  }
}

// Blocks given as blocks, or as tokens in older files (rounded up).
std::int32_t block_count(const ConfigReader& reader, std::initializer_list<const char*> block_keys,
                         const char* token_key, std::int32_t block_tokens, std::int64_t min,
                         std::optional<std::int64_t> fallback) {
  if (reader.has(token_key)) {
    const std::int64_t tokens =
        reader.integer({token_key}, 0, std::int64_t{kMaxBlockTokens} * 1024);
    fallback = (tokens + block_tokens - 1) / std::max(block_tokens, 1);
  }
  return static_cast<std::int32_t>(reader.integer(block_keys, min, 1024, fallback));
}

void read_sparse_attention(const ConfigReader& text, ModelConfig& config, ProblemList& problems) {
  const json* published = text.value("sparse_attention_config");
  const ConfigReader sparse(object_or_empty(published), "text_config.sparse_attention_config.",
                            problems);
  const auto num_layers = static_cast<std::size_t>(config.num_layers);
  std::vector<bool> is_sparse = layer_flags({.numbers = sparse,
                                             .number_key = "sparse_attention_freq",
                                             .names = text,
                                             .name_key = "layer_types",
                                             .no = "full_attention",
                                             .yes = "minimax_m3_sparse",
                                             .if_absent = false},
                                            num_layers);
  if (published != nullptr && !sparse.boolean("use_sparse_attention", true)) {
    is_sparse.assign(num_layers, false);
  }
  for (std::size_t i = 0; i < num_layers; ++i) config.layers[i].is_sparse_attention = is_sparse[i];
  if (config.num_sparse_layers() == 0) return;

  const ConfigReader& reader = published != nullptr ? sparse : text;
  const auto count = [&](const char* name, const char* flat_name, std::int32_t max) {
    return static_cast<std::int32_t>(reader.integer({name, flat_name}, 1, max));
  };
  config.index_num_heads = count("sparse_num_index_heads", "index_n_heads", kMaxHeads);
  config.index_head_dim = count("sparse_index_dim", "index_head_dim", kMaxHeadDim);
  config.block_tokens = count("sparse_block_size", "index_block_size", kMaxBlockTokens);
  config.top_k_blocks = count("sparse_topk_blocks", "index_topk_blocks", 1024);
  config.local_blocks = block_count(reader, {"sparse_local_block", "index_local_blocks"},
                                    "sparse_local_tokens", config.block_tokens, 1, std::nullopt);
  config.init_blocks =
      block_count(reader, {"sparse_init_block"}, "sparse_init_tokens", config.block_tokens, 0, 0);
  reader.must_be("sparse_score_type", "max");

  if (config.index_num_heads != config.num_kv_heads) {
    reader.problem(
        fmt::format("{} index heads, expected num_key_value_heads ({}): each group of "
                    "query heads has its own selection",
                    config.index_num_heads, config.num_kv_heads));
  }
  if (config.index_head_dim != config.head_dim) {
    reader.problem(fmt::format("index head dim is {}, expected head_dim ({})",
                               config.index_head_dim, config.head_dim));
  }
  if (config.block_tokens % 16 != 0) {
    reader.problem(
        fmt::format("sparse block size is {}, expected a multiple of 16 (128 as "
                    "published)",
                    config.block_tokens));
  }
  if (config.local_blocks + config.init_blocks > config.top_k_blocks) {
    reader.problem(
        fmt::format("{} local and {} init blocks are always selected, expected at most "
                    "the {} of top-k",
                    config.local_blocks, config.init_blocks, config.top_k_blocks));
  }
  const std::vector<bool> disabled =
      reader.per_layer("sparse_disable_index_value", num_layers, "0 or 1", flag_of_number);
  for (std::size_t i = 0; i < disabled.size(); ++i) {
    if (is_sparse[i] && !disabled[i]) {
      reader.problem(
          fmt::format("sparse_disable_index_value[{}] is 0, expected 1 in a sparse "
                      "layer: an index branch with values is not offered",
                      i));
      break;
    }
  }
}

void read_mlp(const ConfigReader& text, ModelConfig& config) {
  const auto num_layers = static_cast<std::size_t>(config.num_layers);
  const std::vector<bool> is_moe = layer_flags({.numbers = text,
                                                .number_key = "moe_layer_freq",
                                                .names = text,
                                                .name_key = "mlp_layer_types",
                                                .no = "dense",
                                                .yes = "sparse",
                                                .if_absent = true},
                                               num_layers);
  for (std::size_t i = 0; i < num_layers; ++i) config.layers[i].is_moe = is_moe[i];

  const json* act = text.value("hidden_act");
  if (act != nullptr && *act != "swigluoai" && *act != "silu") {
    text.refuse("hidden_act", *act, "\"swigluoai\" (or transformers' \"silu\", which it ignores)");
  }
  config.swiglu_alpha = text.positive({"swiglu_alpha"});
  config.swiglu_limit = text.positive({"swiglu_limit"});
  text.must_be("swiglu_beta", 1.0);

  if (std::find(is_moe.begin(), is_moe.end(), false) != is_moe.end()) {
    config.dense_intermediate = text.count({"dense_intermediate_size"}, kMaxWidth);
  }
  if (std::find(is_moe.begin(), is_moe.end(), true) == is_moe.end()) return;
  config.moe_intermediate = text.count({"intermediate_size"}, kMaxWidth);
  config.shared_intermediate = static_cast<std::int32_t>(
      text.integer({"shared_intermediate_size"}, 1, kMaxWidth, config.moe_intermediate));
  config.num_experts = text.count({"num_local_experts"}, kMaxExperts);
  config.top_k_experts = text.count({"num_experts_per_tok"}, kMaxExperts);
  config.routed_scaling_factor = text.positive({"routed_scaling_factor"});
  text.must_be("n_shared_experts", 1);
  text.must_be("scoring_func", "sigmoid");
  text.must_be("use_routing_bias", true);
  if (config.top_k_experts > config.num_experts) {
    text.problem(fmt::format("num_experts_per_tok is {}, expected at most num_local_experts ({})",
                             config.top_k_experts, config.num_experts));
  }
}

void read_quantization(const json& root, const json& text_object, ModelConfig& config,
                       ProblemList& problems) {
  const auto find = [](const json& object) -> const json* {
    const auto at = object.find("quantization_config");
    return at != object.end() && at->is_object() ? &*at : nullptr;
  };
  const json* object = find(root) != nullptr ? find(root) : find(text_object);
  if (object == nullptr) return;
  const ConfigReader reader(*object, "quantization_config.", problems);
  QuantizationInfo& info = config.quantization;
  info.method = reader.text({"quant_method"});
  info.moe_algorithm = reader.text({"moe_quant_algo"});
  info.moe_format = reader.text({"moe_quant_format"});
  info.kv_cache = reader.text({"kv_cache_quant_algo"});
  if (info.method != "mxfp8" && info.method != "modelopt" && info.method != "compressed-tensors") {
    reader.refuse("quant_method", info.method, "mxfp8, modelopt or compressed-tensors");
  }
}

// One id or a list of ids; what is no id of the vocabulary is a problem.
std::vector<TokenId> token_ids(const json& object, const char* key, std::string_view file,
                               std::int32_t vocab_size, ProblemList& problems) {
  std::vector<TokenId> ids;
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return ids;
  const json list = at->is_array() ? *at : json::array({*at});
  for (const json& entry : list) {
    const bool is_id = entry.is_number_integer() && entry >= 0 && entry < vocab_size;
    if (!is_id) {
      problems.add(fmt::format("{}: {} holds {}, expected token ids below vocab_size ({})", file,
                               key, printable(entry.dump()), vocab_size));
      continue;
    }
    ids.push_back(entry.get<TokenId>());
  }
  return ids;
}

void read_tokens(const json& root, const json& text_object, const json* generation,
                 ModelConfig& config, ProblemList& problems) {
  const auto ids = [&](const char* key, TokenId published) {
    std::vector<TokenId> found;
    if (generation != nullptr) {
      found = token_ids(*generation, key, "generation_config.json", config.vocab_size, problems);
    }
    for (const json* object : {&text_object, &root}) {
      if (found.empty()) {
        found = token_ids(*object, key, "config.json", config.vocab_size, problems);
      }
    }
    if (found.empty() && config.vocab_size == kPublishedVocab) found = {published};
    return found;
  };
  config.bos_token_ids = ids("bos_token_id", kPublishedBos);
  config.eos_token_ids = ids("eos_token_id", kPublishedEos);
  const auto single = [&](const char* key) -> std::optional<TokenId> {
    const std::vector<TokenId> found =
        token_ids(root, key, "config.json", config.vocab_size, problems);
    return found.empty() ? std::nullopt : std::optional(found.front());
  };
  config.image_token = single("image_token_index");
  config.video_token = single("video_token_index");
}

void read_generation(const json& generation, GenerationDefaults& defaults, ProblemList& problems) {
  const auto number = [&](const char* key, double min, double max) -> std::optional<double> {
    const auto at = generation.find(key);
    if (at == generation.end() || at->is_null()) return std::nullopt;
    if (at->is_number() && at->get<double>() >= min && at->get<double>() <= max) {
      return at->get<double>();
    }
    problems.add(fmt::format("generation_config.json: {} is {}, expected {} to {}", key,
                             printable(at->dump()), min, max));
    return std::nullopt;
  };
  const auto integer = [&](const char* key, double min) -> std::optional<std::int64_t> {
    const std::optional<double> value = number(key, min, 1e15);
    return value ? std::optional(static_cast<std::int64_t>(*value)) : std::nullopt;
  };
  defaults.temperature = number("temperature", 0, 100);
  defaults.top_p = number("top_p", 0, 1);
  defaults.min_p = number("min_p", 0, 1);
  defaults.repetition_penalty = number("repetition_penalty", 1e-6, 1e6);
  defaults.top_k = integer("top_k", -1);
  defaults.max_new_tokens = integer("max_new_tokens", 1);
}

}  // namespace

int ModelConfig::num_sparse_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](const LayerConfig& layer) {
    return layer.is_sparse_attention;
  }));
}

std::vector<int> ModelConfig::sparse_layers() const {
  std::vector<int> found;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].is_sparse_attention) found.push_back(static_cast<int>(i));
  }
  return found;
}

CacheDType ModelConfig::default_cache_dtype() const {
  if (quantization.kv_cache == "NVFP4") return CacheDType::kNvfp4;
  if (quantization.kv_cache == "FP8") return CacheDType::kFp8;
  const bool has_nvfp4_experts =
      quantization.moe_algorithm == "NVFP4" || quantization.moe_format == "nvfp4-pack-quantized";
  const bool is_m31 = has_nvfp4_experts && num_sparse_layers() == num_layers;
  return is_m31 ? CacheDType::kNvfp4 : CacheDType::kBF16;
}

ModelConfig parse_model_config(const json& root, const json* generation, ProblemList& problems) {
  ModelConfig config;
  const auto nested = root.find("text_config");
  const bool is_nested = nested != root.end() && nested->is_object();
  const json& text_object = is_nested ? *nested : root;
  const ConfigReader outer(root, "", problems);
  const ConfigReader text(text_object, is_nested ? "text_config." : "", problems);

  config.model_type = outer.text({"model_type"});
  if (!config.model_type.starts_with("minimax_m3")) {
    outer.problem(
        fmt::format("model_type is \"{}\", expected minimax_m3_vl or minimax_m3: only "
                    "MiniMax-M3 and M3.1 are served",
                    printable(config.model_type)));
    return config;
  }
  config.dtype = text.text({"dtype", "torch_dtype"});
  if (config.dtype.empty()) config.dtype = outer.text({"dtype", "torch_dtype"});
  config.vocab_size = text.count({"vocab_size"}, 1 << 24);
  config.hidden_size = text.count({"hidden_size"}, kMaxWidth);
  config.num_layers = text.count({"num_hidden_layers"}, kMaxLayers);
  config.max_position_embeddings =
      text.integer({"max_position_embeddings"}, 1, std::int64_t{1} << 40);
  config.rms_eps = text.positive({"rms_norm_eps"});
  text.must_be("use_gemma_norm", true);
  config.tie_word_embeddings = text.has("tie_word_embeddings")
                                   ? text.boolean("tie_word_embeddings", false)
                                   : outer.boolean("tie_word_embeddings", false);
  config.layers.resize(static_cast<std::size_t>(config.num_layers));

  read_attention(text, config, problems);
  read_sparse_attention(text, config, problems);
  read_mlp(text, config);
  read_quantization(root, text_object, config, problems);
  read_tokens(root, text_object, generation, config, problems);
  const auto vision = root.find("vision_config");
  config.has_vision = vision != root.end() && vision->is_object();
  if (generation != nullptr) read_generation(*generation, config.generation, problems);
  return config;
}

ModelConfig read_model_config(const std::filesystem::path& folder, ProblemList& problems) {
  const json config = read_json_object(folder / "config.json");
  const std::filesystem::path generation_file = folder / "generation_config.json";
  if (!std::filesystem::exists(generation_file)) {
    return parse_model_config(config, nullptr, problems);
  }
  const json generation = read_json_object(generation_file);
  return parse_model_config(config, &generation, problems);
}

ModelConfig read_model_config(const std::filesystem::path& folder) {
  ProblemList problems;
  ModelConfig config = read_model_config(folder, problems);
  problems.throw_if_any((folder / "config.json").string());
  return config;
}

}  // namespace winnow
