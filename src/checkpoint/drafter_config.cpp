#include "checkpoint/drafter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/json_file.h"
#include "checkpoint/model_config.h"

namespace winnow {

namespace {

using nlohmann::json;

// As for the target's own config: far above any real drafter, far below what 64 bits hold.
constexpr std::int32_t kMaxWidth = 1 << 20;
constexpr std::int32_t kMaxLayers = 64;
constexpr std::int32_t kMaxHeads = 1024;
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr std::int32_t kMaxBlock = 64;
constexpr std::int32_t kMaxRank = 1 << 14;

constexpr const char* kArchitecture = "DSparkMiniMaxDraftModel";
constexpr const char* kQwen3Architecture = "Qwen3DSparkModel";

const json& object_at(const json& parent, const char* key) {
  const auto at = parent.find(key);
  return object_or_empty(at == parent.end() ? nullptr : &*at);
}

/// The parts of the file that hold keys, in the order in which they are asked.
struct Parts {
  Parts(const json& root, ProblemList& problems)
      : is_nested(root.contains("text_config") && root["text_config"].is_object()),
        root_reader(root, "", problems),
        text(is_nested ? root["text_config"] : root, is_nested ? "text_config." : "", problems),
        flash(flash_object(root), "dflash_config.", problems),
        dspark(object_at(root, "dspark_config"), "dspark_config.", problems),
        rope(object_at(is_nested ? root["text_config"] : root, "rope_parameters"),
             is_nested ? "text_config.rope_parameters." : "rope_parameters.", problems) {}

  const json& flash_object(const json& root) const {
    const json& outer = object_at(root, "dflash_config");
    return outer.empty() && is_nested ? object_at(root["text_config"], "dflash_config") : outer;
  }
  /// The reader that has the key: text_config before the file's top level.
  const ConfigReader& of(const char* key) const {
    return !text.has(key) && root_reader.has(key) ? root_reader : text;
  }

  bool is_nested;
  ConfigReader root_reader;
  ConfigReader text;
  ConfigReader flash;
  ConfigReader dspark;
  ConfigReader rope;
};

DrafterKind read_kind(const json& root, const ConfigReader& reader) {
  const auto list = root.find("architectures");
  if (list == root.end() || !list->is_array() || list->empty() || !list->front().is_string()) {
    reader.problem(fmt::format("no architectures, expected [\"{}\"] or [\"{}\"]", kArchitecture,
                               kQwen3Architecture));
    return DrafterKind::kMinimax;
  }
  const auto name = list->front().get<std::string>();
  if (name == kArchitecture) return DrafterKind::kMinimax;
  // An older spelling names the layers by model_type alone.
  const bool is_qwen3 = name == kQwen3Architecture ||
                        (name == "DSparkDraftModel" && reader.text({"model_type"}) == "qwen3");
  if (is_qwen3) return DrafterKind::kQwen3;
  std::string why;
  if (name.starts_with("MiniMaxM3")) {
    why = ": this is a target model's config; its drafter is in the folder dspark/";
  }
  reader.problem(fmt::format("architectures holds {}, expected {} or {}{}", printable(name),
                             kArchitecture, kQwen3Architecture, why));
  return DrafterKind::kMinimax;
}

// What a list holds at every place, when it is there.
void check_every(const ConfigReader& reader, const char* key, const json& expected,
                 std::int32_t num_layers) {
  const json* const list = reader.value(key);
  if (list == nullptr) return;
  const bool is_list = list->is_array() && std::ssize(*list) == num_layers;
  if (!is_list) {
    reader.refuse(key, *list, fmt::format("{} entries of {}", num_layers, expected.dump()));
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    if ((*list)[i] == expected) continue;
    reader.refuse(fmt::format("{}[{}]", key, i), (*list)[i], expected.dump());
  }
}

void read_sizes(const ConfigReader& text, const ModelConfig& target, DrafterConfig& config) {
  config.num_layers = text.count({"num_hidden_layers"}, kMaxLayers);
  config.hidden_size = text.count({"hidden_size"}, kMaxWidth);
  config.vocab_size = text.count({"vocab_size"}, 1 << 24);
  const auto must_equal = [&](const char* key, std::int32_t value, std::int32_t of_target) {
    if (value == of_target) return;
    text.problem(fmt::format("{} is {}, expected the target's {}: embedding and lm_head are shared",
                             key, value, of_target));
  };
  must_equal("hidden_size", config.hidden_size, target.hidden_size);
  must_equal("vocab_size", config.vocab_size, target.vocab_size);
  config.rms_eps = text.has("rms_norm_eps") ? text.positive({"rms_norm_eps"}) : target.rms_eps;
  if (config.kind == DrafterKind::kQwen3) {
    if (text.has("draft_vocab_size")) {
      must_equal("draft_vocab_size", text.count({"draft_vocab_size"}, 1 << 24), target.vocab_size);
    }
    config.ffn_width = text.count({"intermediate_size"}, kMaxWidth);
    config.norm_offset = 0;
    config.swiglu_alpha = 1;
    config.swiglu_limit = std::numeric_limits<double>::infinity();
    config.swiglu_offset = 0;
    return;
  }
  config.ffn_width = text.count({"dspark_ffn_hidden_size", "dense_intermediate_size"}, kMaxWidth);
  config.swiglu_alpha =
      text.has("swiglu_alpha") ? text.positive({"swiglu_alpha"}) : target.swiglu_alpha;
  config.swiglu_limit =
      text.has("swiglu_limit") ? text.positive({"swiglu_limit"}) : target.swiglu_limit;
}

void read_rope(const Parts& parts, const ModelConfig& target, DrafterConfig& config) {
  const ConfigReader& text = parts.text;
  const ConfigReader& rope = parts.rope;
  rope.must_be("rope_type", "default");
  if (const json* scaling = text.value("rope_scaling")) {
    text.refuse("rope_scaling", *scaling, "null");
  }
  const auto theta_of = [](const ConfigReader& reader) { return reader.positive({"rope_theta"}); };
  const bool is_qwen3 = config.kind == DrafterKind::kQwen3;
  config.rope_theta = rope.has("rope_theta")               ? theta_of(rope)
                      : text.has("rope_theta") || is_qwen3 ? theta_of(text)
                                                           : target.rope_theta;
  std::optional<double> factor = rope.number("partial_rotary_factor");
  if (!factor) factor = text.number("partial_rotary_factor");
  std::int64_t by_default = is_qwen3 ? config.head_dim : target.rotary_dim;
  if (factor && *factor > 0 && *factor <= 1) {
    by_default = static_cast<std::int64_t>(std::floor(*factor * config.head_dim));
  }
  config.rotary_dim =
      static_cast<std::int32_t>(text.integer({"rotary_dim"}, 1, kMaxHeadDim, by_default));
  if (factor && config.rotary_dim != by_default) {
    text.problem(fmt::format(
        "rotary_dim is {} but partial_rotary_factor {} × head_dim {} is {}; expected one value",
        config.rotary_dim, *factor, config.head_dim, by_default));
  }
  if (is_qwen3) {
    text.must_be("rope_is_neox_style", true);
    if (config.rotary_dim != config.head_dim) {
      text.problem(fmt::format("rotary_dim is {}, expected head_dim ({}) in Qwen3 layers",
                               config.rotary_dim, config.head_dim));
    }
  }
  if (config.rotary_dim % 2 != 0 || config.rotary_dim > config.head_dim) {
    text.problem(fmt::format("rotary_dim is {}, expected an even number up to head_dim ({})",
                             config.rotary_dim, config.head_dim));
  }
}

// A library that nulls sliding_window unless use_sliding_window is set turns a windowed drafter
// into a full one, in silence. Here layer_types decides, and what it calls sliding must have a
// window.
void read_qwen3_window(const ConfigReader& text, DrafterConfig& config) {
  constexpr const char* kSliding = "sliding_attention";
  constexpr const char* kFull = "full_attention";
  bool is_sliding = text.boolean("use_sliding_window", text.has("sliding_window"));
  if (const json* const types = text.value("layer_types")) {
    is_sliding = types->is_array() && !types->empty() && types->front() == kSliding;
    check_every(text, "layer_types", is_sliding ? kSliding : kFull, config.num_layers);
  }
  config.sliding_window =
      is_sliding ? text.count({"sliding_window"}, kUnlimitedWindow) : kUnlimitedWindow;
}

void read_attention(const ConfigReader& text, DrafterConfig& config) {
  config.num_heads = text.count({"num_attention_heads"}, kMaxHeads);
  config.num_kv_heads = text.count({"num_key_value_heads"}, kMaxHeads);
  config.head_dim = text.count({"head_dim"}, kMaxHeadDim);
  if (config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads != 0) {
    text.problem(
        fmt::format("num_attention_heads is {}, expected a multiple of num_key_value_heads ({})",
                    config.num_heads, config.num_kv_heads));
  }
  if (config.kind == DrafterKind::kQwen3) return read_qwen3_window(text, config);
  config.sliding_window = text.count({"sliding_window"}, kUnlimitedWindow);
  text.must_be("use_sliding_window", true);
  check_every(text, "layer_types", "sliding_attention", config.num_layers);
  if (const json* sparse = text.value("sparse_attention_config")) {
    text.refuse("sparse_attention_config", *sparse, "null: the drafter's attention is dense");
  }
}

std::optional<TokenId> find_noise_token(const Parts& parts, std::int32_t vocab_size) {
  struct Place {
    const ConfigReader& reader;
    const char* key;
  };
  const Place places[] = {{parts.flash, "mask_token_id"},
                          {parts.of("mask_token_id"), "mask_token_id"},
                          {parts.of("dspark_noise_token_id"), "dspark_noise_token_id"},
                          {parts.of("pard_token"), "pard_token"},
                          {parts.of("ptd_token_id"), "ptd_token_id"}};
  for (const Place& place : places) {
    if (!place.reader.has(place.key)) continue;
    return static_cast<TokenId>(place.reader.integer({place.key}, 0, std::max(vocab_size - 1, 0)));
  }
  return std::nullopt;
}

// Adds the layers listed under `key`, each minus `shift`; false when the key is absent.
bool read_layers(const ConfigReader& reader, const char* key, std::int64_t shift,
                 const ModelConfig& target, std::vector<std::int32_t>& layers) {
  const json* const list = reader.value(key);
  if (list == nullptr) return false;
  if (!list->is_array() || list->empty() || list->size() > kMaxLayers) {
    reader.refuse(key, *list, fmt::format("1 to {} layers of the target", kMaxLayers));
    return true;
  }
  std::int64_t previous = shift - 1;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const json& entry = (*list)[i];
    const bool is_small = entry.is_number_integer() && entry >= 0 && entry <= (1 << 20);
    const std::int64_t value = is_small ? entry.get<std::int64_t>() : -1;
    if (value <= previous || value - shift >= target.num_layers) {
      reader.refuse(fmt::format("{}[{}]", key, i), entry,
                    fmt::format("ascending layers from {} to {} (the target's)", shift,
                                target.num_layers - 1 + shift));
      return true;
    }
    layers.push_back(static_cast<std::int32_t>(value - shift));
    previous = value;
  }
  return true;
}

void read_target_layers(const Parts& parts, const ModelConfig& target, DrafterConfig& config) {
  // "Input of layer i" in one spelling, "output of layer i" in the others.
  constexpr const char* kInputs = "eagle_aux_hidden_state_layer_ids";
  if (read_layers(parts.of(kInputs), kInputs, 1, target, config.target_layers)) return;
  if (read_layers(parts.flash, "target_layer_ids", 0, target, config.target_layers)) return;
  for (const char* key : {"dspark_target_layer_ids", "target_layer_ids"}) {
    if (read_layers(parts.of(key), key, 0, target, config.target_layers)) return;
  }
  parts.text.problem(fmt::format(
      "{} is missing: after which layers of the target are streams captured?",
      config.kind == DrafterKind::kQwen3 ? "target_layer_ids" : "dspark_target_layer_ids"));
}

void read_heads(const Parts& parts, DrafterConfig& config) {
  const ConfigReader& text = parts.text;
  const bool is_in_flash = parts.flash.has("block_size") && !text.has("block_size");
  config.block_size = is_in_flash ? parts.flash.count({"block_size"}, kMaxBlock)
                                  : text.count({"dspark_block_size", "block_size"}, kMaxBlock);
  config.markov_rank = text.count({"dspark_markov_rank", "markov_rank"}, kMaxRank);
  for (const char* key : {"dspark_markov_head_type", "markov_head_type"}) {
    text.must_be(key, "vanilla");
  }
  if (const auto token = find_noise_token(parts, config.vocab_size)) {
    config.noise_token = *token;
  } else {
    text.problem(fmt::format(
        "{} is missing: which token stands for one not yet drafted?",
        config.kind == DrafterKind::kQwen3 ? "mask_token_id" : "dspark_noise_token_id"));
  }
  config.has_confidence_head = text.boolean("enable_confidence_head", false);
  config.confidence_uses_markov = text.boolean("confidence_head_with_markov", true);
}

// Variants that exist elsewhere and are not computed here.
void refuse_variants(const Parts& parts, const DrafterConfig& config) {
  const ConfigReader& text = parts.text;
  const bool is_qwen3 = config.kind == DrafterKind::kQwen3;
  text.must_be("use_gemma_norm", !is_qwen3);
  if (is_qwen3) {
    text.must_be("attention_bias", false);
    text.must_be("mlp_bias", false);
    text.must_be("hidden_act", "silu");
    text.must_be("tie_word_embeddings", false);
  }
  text.must_be("dspark_use_dense_ffn", true);
  check_every(text, "moe_layer_freq", 0, config.num_layers);
  text.must_be("dspark_hybrid_context_fusion", false);
  parts.dspark.must_be("hybrid_context_fusion", false);
  parts.of("is_causal").must_be("is_causal", false);
  parts.flash.must_be("causal", false);
  for (const ConfigReader* reader : {&text, &parts.root_reader, &parts.dspark}) {
    reader->must_be("sample_from_anchor", true);
  }
}

void read_quantization(const json& root, const Parts& parts, DrafterConfig& config,
                       ProblemList& problems) {
  const json* const object = parts.of("quantization_config").value("quantization_config");
  if (object == nullptr) return;
  const ConfigReader reader(
      object_at(
          parts.text.has("quantization_config") && parts.is_nested ? root["text_config"] : root,
          "quantization_config"),
      "quantization_config.", problems);
  config.quant_method = reader.text({"quant_method"});
  if (config.quant_method != "mxfp8") {
    reader.refuse("quant_method", config.quant_method, "mxfp8, or no quantization_config");
  }
  reader.must_be("weight_block_size", json::array({1, 32}));
}

}  // namespace

DrafterConfig parse_drafter_config(const json& root, const ModelConfig& target,
                                   ProblemList& problems) {
  DrafterConfig config;
  const Parts parts(root, problems);
  config.kind = read_kind(root, parts.root_reader);
  if (!problems.empty()) return config;
  read_sizes(parts.text, target, config);
  read_attention(parts.text, config);
  read_rope(parts, target, config);
  read_heads(parts, config);
  read_target_layers(parts, target, config);
  refuse_variants(parts, config);
  read_quantization(root, parts, config, problems);
  return config;
}

bool has_drafter(const std::filesystem::path& target_folder) {
  return std::filesystem::exists(target_folder / kDrafterFolder / "config.json");
}

std::filesystem::path find_drafter(const std::filesystem::path& folder) {
  if (has_drafter(folder)) return folder / kDrafterFolder;
  if (std::filesystem::exists(folder / "config.json")) {
    const json root = read_json_object(folder / "config.json");
    const auto list = root.find("architectures");
    const bool has_name =
        list != root.end() && list->is_array() && !list->empty() && list->front().is_string();
    if (has_name && list->front().get<std::string>().find("DSpark") != std::string::npos) {
      return folder;
    }
  }
  throw Error(
      ErrorCode::kNotFound, fmt::format("{}: no {}/config.json", folder.string(), kDrafterFolder),
      "a checkpoint with a drafter has it in that folder; serve without --speculative-config");
}

DrafterConfig read_drafter_config(const std::filesystem::path& folder, const ModelConfig& target,
                                  ProblemList& problems) {
  const std::filesystem::path place = find_drafter(folder);
  const json root = read_json_object(place / "config.json");
  const std::string prefix = place == folder ? "" : fmt::format("{}/", kDrafterFolder);
  ProblemList found;
  DrafterConfig config = parse_drafter_config(root, target, found);
  for (const std::string& problem : found.all()) {
    problems.add(prefix + problem);
  }
  return config;
}

DrafterConfig read_drafter_config(const std::filesystem::path& folder, const ModelConfig& target) {
  ProblemList problems;
  DrafterConfig config = read_drafter_config(folder, target, problems);
  problems.throw_if_any(find_drafter(folder).string());
  return config;
}

}  // namespace winnow
