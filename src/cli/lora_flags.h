// Flags of adapters (LoRA), as `vllm serve` spells them. Source: spec/serving-fields.md 1.2.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flag_set.h"

namespace winnow::cli {

struct LoraFlags {
  bool enable_lora = false;
  std::optional<std::int64_t> max_loras, max_lora_rank, max_cpu_loras;
  std::vector<std::string> lora_modules;
  std::string lora;  // of the terminal verbs: one folder
};

struct LoraModule {
  std::string name;
  std::string path;
  std::string base_model;  // empty: the served model
};

/// What the flags come to.
struct LoraSettings {
  std::int32_t max_loras = 1;  // different ones in a step
  std::int32_t max_rank = 16;
  std::int32_t max_loaded = 16;
  std::vector<LoraModule> modules;  // to load at start
};

/// The model name by which a terminal verb asks for its --lora.
inline constexpr const char* kTerminalAdapter = "lora";

/// Those of `winnow serve`, and --lora of the terminal verbs, for which the former are refused.
void add_lora_flags(FlagSet& set, LoraFlags& flags);
void add_terminal_lora_flag(FlagSet& set, LoraFlags& flags);
/// For verbs without adapters.
void add_foreign_lora_flags(FlagSet& set);

/// none: no adapters. Throws UsageError.
std::optional<LoraSettings> lora_settings(const LoraFlags& flags);

}  // namespace winnow::cli
