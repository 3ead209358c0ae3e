#include "checkpoint/lora_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "checkpoint/config_reader.h"

namespace winnow {

namespace {

using nlohmann::json;

constexpr std::int64_t kMaxRank = 1 << 16;

/// A pattern is tried on every module: with more, a load would take minutes.
constexpr std::size_t kMaxPatterns = 4096;

/// Keys that leave the result as it is: they tell of the training, or of what the tensors tell
/// themselves.
constexpr std::string_view kIgnoredKeys[] = {
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "velora_config",
};

/// Keys that are read here.
constexpr std::string_view kReadKeys[] = {
    "peft_type",     "r",          "lora_alpha",     "use_rslora",       "rank_pattern",
    "alpha_pattern", "bias",       "lora_bias",      "fan_in_fan_out",   "init_lora_weights",
    "use_dora",      "use_qalora", "target_modules", "target_parameters"};

bool contains(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

/// null, false, 0, "", [] and {}: what a key that is not in use is set to.
bool is_off(const json& value) {
  return value.is_null() || value == false || value == 0 || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

/// Some ways to start a training take a part out of the base weights, so the adapter is none of the
/// published model.
void check_start(const ConfigReader& reader) {
  const json* const start = reader.value("init_lora_weights");
  if (start == nullptr || !start->is_string()) return;
  const std::string name = start->get<std::string>();
  for (const std::string_view changes_base : {"pissa", "olora", "corda", "loftq", "lora_ga"}) {
    if (!name.starts_with(changes_base)) continue;
    reader.problem(fmt::format(
        "init_lora_weights is \"{}\", which trains beside changed base weights; save the adapter "
        "with path_initial_model_for_weight_conversion to make it one of the published weights",
        printable(name)));
  }
}

void check_targets(const ConfigReader& reader) {
  const auto is_text = [](const json& entry) { return entry.is_string(); };
  for (const char* key : {"target_modules", "target_parameters"}) {
    const json* const value = reader.value(key);
    if (value == nullptr || (value->is_string() && std::string_view(key) == "target_modules")) {
      continue;
    }
    if (!value->is_array() || !std::ranges::all_of(*value, is_text)) {
      reader.refuse(key, *value, "a list of names");
    }
  }
}

/// What no key above covers must be off: an extension that is not known would be left out silently.
void check_other_keys(const json& config, const ConfigReader& reader) {
  for (const auto& [key, value] : config.items()) {
    if (contains(kIgnoredKeys, key) || contains(kReadKeys, key) || is_off(value)) continue;
    reader.problem(fmt::format("{} is in use, which winnow does not compute", printable(key)));
  }
}

template <typename Value, typename Accept>
std::vector<std::pair<NamePattern, Value>> read_patterns(const ConfigReader& reader,
                                                         const char* key, std::string_view accepted,
                                                         const Accept& accept) {
  std::vector<std::pair<NamePattern, Value>> patterns;
  const json* const object = reader.value(key);
  if (object == nullptr) return patterns;
  if (!object->is_object() || object->size() > kMaxPatterns) {
    reader.refuse(key, *object, fmt::format("an object of at most {} patterns", kMaxPatterns));
    return patterns;
  }
  for (const auto& [name, value] : object->items()) {
    if (!accept(value)) {
      reader.refuse(fmt::format("{}.{}", key, printable(name)), value, accepted);
      continue;
    }
    try {
      patterns.emplace_back(NamePattern(name), value.template get<Value>());
    } catch (const Error& error) {
      reader.problem(fmt::format("{}: {}", key, error.what()));
    }
  }
  return patterns;
}

template <typename Value>
Value value_of(const std::vector<std::pair<NamePattern, Value>>& patterns, Value fallback,
               std::string_view module) {
  for (const auto& [pattern, value] : patterns) {
    if (pattern.matches(module)) return value;
  }
  return fallback;
}

bool is_rank(const json& value) {
  return value.is_number_integer() && value >= 1 && value <= kMaxRank;
}

bool is_alpha(const json& value) {
  return value.is_number() && std::abs(value.get<double>()) <= 1e6;
}

}  // namespace

std::int32_t LoraConfig::rank_of(std::string_view module) const {
  return value_of(rank_pattern, rank, module);
}

float LoraConfig::scale_of(std::string_view module) const {
  const double r = rank_of(module);
  return static_cast<float>(value_of(alpha_pattern, alpha, module) /
                            (use_rslora ? std::sqrt(r) : r));
}

LoraConfig parse_lora_config(const json& config, ProblemList& problems) {
  const ConfigReader reader(config, "", problems, kLoraConfigFile);
  reader.must_be("peft_type", "LORA");
  if (!reader.has("peft_type")) reader.problem("peft_type is missing");
  reader.must_be("bias", "none");
  for (const char* key : {"lora_bias", "fan_in_fan_out", "use_dora", "use_qalora"}) {
    reader.must_be(key, false);
  }
  check_start(reader);
  check_targets(reader);
  check_other_keys(config, reader);

  LoraConfig read;
  read.rank = static_cast<std::int32_t>(reader.integer({"r"}, 1, kMaxRank));
  const json* const alpha = reader.value("lora_alpha");
  if (alpha == nullptr) {
    reader.problem("lora_alpha is missing");
  } else if (!is_alpha(*alpha)) {
    reader.refuse("lora_alpha", *alpha, "a number of magnitude at most 1e6");
  } else {
    read.alpha = alpha->get<double>();
  }
  read.use_rslora = reader.boolean("use_rslora", false);
  read.rank_pattern = read_patterns<std::int32_t>(reader, "rank_pattern",
                                                  fmt::format("1 to {}", kMaxRank), is_rank);
  read.alpha_pattern =
      read_patterns<double>(reader, "alpha_pattern", "a number of magnitude at most 1e6", is_alpha);
  return read;
}

}  // namespace winnow
