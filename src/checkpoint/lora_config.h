// adapter_config.json of a LoRA adapter as PEFT writes it. What changes the result and is not
// computed here is refused by name. Source: peft 0.21, tuners/lora/config.py and layer.py.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/name_pattern.h"
#include "checkpoint/problem_list.h"

namespace winnow {

inline constexpr const char* kLoraConfigFile = "adapter_config.json";

struct LoraConfig {
  std::int32_t rank = 0;  // above 0 unless there was a problem
  double alpha = 0;
  bool use_rslora = false;
  // For modules that a pattern matches, instead of the above. The first match counts; order of
  // keys.
  std::vector<std::pair<NamePattern, std::int32_t>> rank_pattern;
  std::vector<std::pair<NamePattern, double>> alpha_pattern;

  /// `module` without the leading "base_model.model.". Both throw Error{kInvalidCheckpoint} on a
  /// pattern that takes too long.
  std::int32_t rank_of(std::string_view module) const;
  /// alpha / rank; with use_rslora alpha / √rank.
  float scale_of(std::string_view module) const;
};

LoraConfig parse_lora_config(const nlohmann::json& config, ProblemList& problems);

}  // namespace winnow
