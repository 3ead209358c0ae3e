// Names of a LoRA adapter's tensors: which half of which projection's pair one is. Source: peft
// 0.21 (utils/save_and_load.py, tuners/lora/layer.py), the published checkpoint's names
// (spec/model.md section 2) and transformers' modules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace winnow {

/// Those that one fused matrix computes are side by side.
enum class LoraProjection : std::uint8_t {
  kQ,
  kK,
  kV,
  kIndexQ,
  kIndexK,
  kOutput,
  kGate,
  kUp,
  kGateUp,  // gate's rows, then up's, as one projection
  kDown,
};

std::string_view lora_projection_name(LoraProjection projection);

/// Which matrices of an MLP layer a projection is of.
enum class LoraBlock : std::uint8_t { kAttention, kMlp, kSharedExpert, kExpert, kAllExperts };

struct LoraTarget {
  std::int32_t layer = 0;
  LoraBlock block = LoraBlock::kAttention;
  std::int32_t expert = 0;  // of kExpert
  LoraProjection projection = LoraProjection::kQ;

  friend auto operator<=>(const LoraTarget&, const LoraTarget&) = default;
};

/// A tensor's name taken apart.
struct LoraName {
  std::string module;  // the name in front of ".lora_A.weight" or ".lora_B.weight"
  bool is_a = false;
  LoraTarget target;       // of kAllExperts without its projection: shapes tell which it is
  bool is_vision = false;  // of the part of the model that reads images
  std::string refusal;     // why this module takes no adapter; empty: `target` holds
};

/// nullopt: no tensor of a pair.
std::optional<LoraName> parse_lora_name(std::string_view name);

/// `module` as PEFT's patterns see it: without "base_model.model." in front and ".base_layer"
/// inside.
std::string lora_pattern_name(std::string_view module);

}  // namespace winnow
