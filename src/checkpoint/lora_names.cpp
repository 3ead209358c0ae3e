#include "checkpoint/lora_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <vector>

namespace winnow {

namespace {

struct NamedProjection {
  std::string_view name;
  LoraProjection projection;
};

constexpr NamedProjection kAttention[] = {
    {"q_proj", LoraProjection::kQ},
    {"k_proj", LoraProjection::kK},
    {"v_proj", LoraProjection::kV},
    {"o_proj", LoraProjection::kOutput},
    {"index_q_proj", LoraProjection::kIndexQ},
    {"index_k_proj", LoraProjection::kIndexK},
    {"indexer.q_proj", LoraProjection::kIndexQ},
    {"indexer.k_proj", LoraProjection::kIndexK},
};

constexpr NamedProjection kMlp[] = {
    {"gate_proj", LoraProjection::kGate},
    {"up_proj", LoraProjection::kUp},
    {"gate_up_proj", LoraProjection::kGateUp},
    {"down_proj", LoraProjection::kDown},
};

constexpr NamedProjection kExpert[] = {
    {"w1", LoraProjection::kGate},        {"w3", LoraProjection::kUp},
    {"w2", LoraProjection::kDown},        {"gate_proj", LoraProjection::kGate},
    {"up_proj", LoraProjection::kUp},     {"gate_up_proj", LoraProjection::kGateUp},
    {"down_proj", LoraProjection::kDown},
};

constexpr std::string_view kVisionParts[] = {"vision_tower", "multi_modal_projector",
                                             "patch_merge_mlp"};

bool take_prefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

/// A decimal number without leading zeros, and the dot behind it.
std::optional<std::int32_t> take_number(std::string_view& text) {
  std::int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto length = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || number < 0 || (length > 1 && text.front() == '0') ||
      length >= text.size() || text[length] != '.') {
    return std::nullopt;
  }
  text.remove_prefix(length + 1);
  return number;
}

bool take_projection(std::string_view text, std::span<const NamedProjection> projections,
                     LoraTarget& target) {
  const auto at = std::ranges::find(projections, text, &NamedProjection::name);
  if (at == projections.end()) return false;
  target.projection = at->projection;
  return true;
}

/// Behind "mlp.": true when `rest` names matrices that take an adapter.
bool read_mlp(std::string_view rest, LoraTarget& target) {
  if (rest == "experts" || rest == "experts.base_layer") {
    target.block = LoraBlock::kAllExperts;
    return true;
  }
  if (take_prefix(rest, "shared_experts.")) {
    target.block = LoraBlock::kSharedExpert;
    return take_projection(rest, kMlp, target);
  }
  if (take_prefix(rest, "experts.")) {
    const auto expert = take_number(rest);
    if (!expert) return false;
    target.block = LoraBlock::kExpert;
    target.expert = *expert;
    return take_projection(rest, kExpert, target);
  }
  target.block = LoraBlock::kMlp;
  return take_projection(rest, kMlp, target);
}

std::string refusal_of(std::string_view module) {
  const auto ends_in = [&](std::string_view segment) {
    return module == segment || module.ends_with(fmt::format(".{}", segment));
  };
  if (ends_in("mlp.gate") || ends_in("block_sparse_moe.gate")) return "the router takes no adapter";
  if (ends_in("lm_head")) return "lm_head takes no adapter";
  if (ends_in("embed_tokens")) return "the embedding takes no adapter";
  if (module.ends_with("norm")) return "norms take no adapter";
  return "no projection of this model";
}

/// What `module` is, as far as names tell.
void read_module(std::string_view module, LoraName& name) {
  std::string_view rest = module;
  take_prefix(rest, "base_model.model.");
  for (const std::string_view part : kVisionParts) {
    name.is_vision = name.is_vision || rest.starts_with(fmt::format("{}.", part)) ||
                     rest.starts_with(fmt::format("model.{}.", part));
  }
  if (name.is_vision) {
    name.refusal = "adapters of the vision part are not computed";
    return;
  }
  // ForConditionalGeneration: model.language_model.; published: language_model.model.; text model:
  // model.; the bare inner models: language_model. or nothing.
  for (const std::string_view root :
       {"model.language_model.", "language_model.model.", "language_model.", "model."}) {
    if (take_prefix(rest, root)) break;
  }
  name.refusal = refusal_of(module);
  if (!take_prefix(rest, "layers.")) return;
  const auto layer = take_number(rest);
  if (!layer) return;
  name.target.layer = *layer;
  const bool is_known =
      take_prefix(rest, "self_attn.")
          ? take_projection(rest, kAttention, name.target)
          : (take_prefix(rest, "mlp.") || take_prefix(rest, "block_sparse_moe.")) &&
                read_mlp(rest, name.target);
  if (is_known) name.refusal.clear();
}

}  // namespace

std::string_view lora_projection_name(LoraProjection projection) {
  constexpr std::array<std::string_view, 10> kNames = {
      "q_proj", "k_proj",    "v_proj",  "index_q_proj", "index_k_proj",
      "o_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"};
  return kNames[static_cast<std::size_t>(projection)];
}

std::optional<LoraName> parse_lora_name(std::string_view name) {
  for (const bool is_a : {true, false}) {
    const std::string_view suffix = is_a ? ".lora_A.weight" : ".lora_B.weight";
    if (!name.ends_with(suffix)) continue;
    LoraName parsed;
    parsed.module = name.substr(0, name.size() - suffix.size());
    parsed.is_a = is_a;
    read_module(parsed.module, parsed);
    return parsed;
  }
  return std::nullopt;
}

std::string lora_pattern_name(std::string_view module) {
  take_prefix(module, "base_model.model.");
  constexpr std::string_view kWrapper = ".base_layer";
  std::string name(module);
  for (std::size_t at = 0; (at = name.find(kWrapper)) != std::string::npos;) {
    name.erase(at, kWrapper.size());
  }
  return name;
}

}  // namespace winnow
