#include "cli/lora_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/usage_error.h"
#include "cli/value_grammar.h"

namespace winnow::cli {
namespace {

// What vLLM accepts: ranks that its kernels have.
constexpr std::int64_t kRanks[] = {1, 8, 16, 32, 64, 128, 256, 320, 512};
constexpr std::int64_t kMaxLoaded = 1024;
constexpr std::int64_t kDefaultLoaded = 16;

std::string module_member(const Json& object, const char* key, const std::string& text) {
  if (!object.contains(key) || object[key].is_null()) return {};
  if (!object[key].is_string()) {
    throw UsageError(fmt::format("--lora-modules: {} of {} is not a string", key, text));
  }
  return object[key].get<std::string>();
}

LoraModule parse_module(const std::string& text) {
  LoraModule module;
  if (text.starts_with('{')) {
    const Json object = Json::parse(text, nullptr, false);
    if (object.is_discarded()) {
      throw UsageError(fmt::format("--lora-modules: {} is not JSON", text));
    }
    for (const auto& [key, value] : object.items()) {
      if (key != "name" && key != "path" && key != "base_model_name") {
        throw UsageError(fmt::format("--lora-modules: unknown member '{}' of {}", key, text),
                         "accepted: name, path, base_model_name");
      }
    }
    module = {.name = module_member(object, "name", text),
              .path = module_member(object, "path", text),
              .base_model = module_member(object, "base_model_name", text)};
  } else {
    const std::size_t equals = text.find('=');
    module.name = text.substr(0, equals);
    if (equals != std::string::npos) module.path = text.substr(equals + 1);
  }
  if (module.name.empty() || module.path.empty()) {
    throw UsageError(
        fmt::format("--lora-modules: {} is neither name=path nor a JSON object with "
                    "name and path",
                    text));
  }
  return module;
}

void check_names(const std::vector<LoraModule>& modules) {
  for (std::size_t i = 0; i < modules.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (modules[i].name == modules[j].name) {
        throw UsageError(fmt::format("--lora-modules: '{}' is named twice", modules[i].name));
      }
    }
  }
}

}  // namespace

void add_lora_flags(FlagSet& set, LoraFlags& flags) {
  set.group("Adapters (LoRA)");
  set.add_switch("enable-lora", flags.enable_lora, "Let requests name adapters as models");
  set.add_list("lora-modules", flags.lora_modules,
               "Adapters to load at start: name=path, or JSON with name, path, base_model_name");
  set.add_integer("max-loras", flags.max_loras, "Different adapters in one step (default 1)");
  set.add_integer("max-lora-rank", flags.max_lora_rank, "Largest rank of an adapter (default 16)");
  set.add_integer("max-cpu-loras", flags.max_cpu_loras,
                  "Adapters that may be loaded, at least --max-loras (default 16, or what those "
                  "flags need)");
  set.add_no_effect("fully-sharded-loras", FlagSet::Kind::kSwitch,
                    "one rank holds the whole of an adapter");
  set.add_no_effect("lora-dtype", FlagSet::Kind::kValue,
                    "adapters are used as stored; computing is in fp32");
  set.add_no_effect("specialize-active-lora", FlagSet::Kind::kSwitch,
                    "there are no captured graphs here");
}

void add_terminal_lora_flag(FlagSet& set, LoraFlags& flags) {
  set.add_string("lora", flags.lora, "Folder of an adapter (LoRA, PEFT's format) to answer with");
  add_foreign_lora_flags(set);
}

void add_foreign_lora_flags(FlagSet& set) {
  constexpr const char* kServed = "adapters by name are `winnow serve`'s";
  set.add_refused("enable-lora", FlagSet::Kind::kSwitch, kServed);
  set.add_refused("lora-modules", FlagSet::Kind::kList, kServed);
  for (const char* name : {"max-loras", "max-lora-rank", "max-cpu-loras"}) {
    set.add_refused(name, FlagSet::Kind::kValue, kServed);
  }
}

std::optional<LoraSettings> lora_settings(const LoraFlags& flags) {
  LoraSettings settings;
  if (!flags.lora.empty()) {
    settings.max_rank = static_cast<std::int32_t>(*std::rbegin(kRanks));
    settings.modules.push_back({.name = kTerminalAdapter, .path = flags.lora, .base_model = {}});
    return settings;
  }
  if (!flags.enable_lora) {
    const struct {
      const char* flag;
      bool is_given;
    } others[] = {{"--lora-modules", !flags.lora_modules.empty()},
                  {"--max-loras", flags.max_loras.has_value()},
                  {"--max-lora-rank", flags.max_lora_rank.has_value()},
                  {"--max-cpu-loras", flags.max_cpu_loras.has_value()}};
    for (const auto& other : others) {
      if (other.is_given) throw UsageError(fmt::format("{} needs --enable-lora", other.flag));
    }
    return std::nullopt;
  }
  for (const std::string& text : flags.lora_modules) {
    settings.modules.push_back(parse_module(text));
  }
  check_names(settings.modules);
  const auto count = [](const char* flag, const std::optional<std::int64_t>& value,
                        std::int64_t fallback, std::int64_t high) {
    return static_cast<std::int32_t>(bounded(flag, value, fallback, 1, high));
  };
  settings.max_loras = count("--max-loras", flags.max_loras, 1, kMaxLoaded);
  settings.max_rank = count("--max-lora-rank", flags.max_lora_rank, 16, 512);
  if (std::ranges::find(kRanks, settings.max_rank) == std::ranges::end(kRanks)) {
    throw UsageError(fmt::format("--max-lora-rank: {} is not one of {}", settings.max_rank,
                                 fmt::join(kRanks, ", ")));
  }
  const auto num_modules = static_cast<std::int64_t>(settings.modules.size());
  const std::int64_t least = std::max<std::int64_t>(settings.max_loras, num_modules);
  settings.max_loaded =
      count("--max-cpu-loras", flags.max_cpu_loras, std::max(kDefaultLoaded, least), kMaxLoaded);
  if (settings.max_loaded < settings.max_loras) {
    throw UsageError(fmt::format("--max-cpu-loras {} is below --max-loras {}", settings.max_loaded,
                                 settings.max_loras));
  }
  if (settings.max_loaded < num_modules) {
    throw UsageError(fmt::format("--lora-modules names {} adapters, more than --max-cpu-loras {}",
                                 num_modules, settings.max_loaded));
  }
  return settings;
}

}  // namespace winnow::cli
