#include "cli/generation_defaults.h"

#include <fmt/format.h>

#include <fstream>

#include "cli/usage_error.h"

namespace winnow::cli {
namespace {

void lay_over(server::GenerationDefaults& out, const Json& values, const std::string& where) {
  const auto number = [&](const char* key, std::optional<double>& target) {
    if (!values.contains(key) || values[key].is_null()) return;
    if (!values[key].is_number()) throw UsageError(fmt::format("{}.{}: not a number", where, key));
    target = values[key].get<double>();
  };
  const auto integer = [&](const char* key, std::optional<std::int64_t>& target) {
    if (!values.contains(key) || values[key].is_null()) return;
    if (!values[key].is_number_integer()) {
      throw UsageError(fmt::format("{}.{}: not an integer", where, key));
    }
    target = values[key].get<std::int64_t>();
  };
  number("temperature", out.temperature);
  number("top_p", out.top_p);
  number("min_p", out.min_p);
  number("repetition_penalty", out.repetition_penalty);
  integer("top_k", out.top_k);
  integer("max_new_tokens", out.max_new_tokens);
}

Json read_file(const std::string& folder) {
  const std::string path = folder + "/generation_config.json";
  std::ifstream file(path);
  if (!file) {
    throw Error(ErrorCode::kIo, fmt::format("--generation-config {}: cannot be read", path));
  }
  Json values = Json::parse(file, nullptr, false);
  if (!values.is_object()) {
    throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}: not a JSON object", path));
  }
  return values;
}

}  // namespace

server::GenerationDefaults read_generation_defaults(const EngineFlags& flags,
                                                    const ModelConfig& config) {
  server::GenerationDefaults out;
  if (flags.generation_config == "auto") {
    const winnow::GenerationDefaults& own = config.generation;
    out = {.temperature = own.temperature,
           .top_p = own.top_p,
           .min_p = own.min_p,
           .repetition_penalty = own.repetition_penalty,
           .top_k = own.top_k,
           .max_new_tokens = own.max_new_tokens};
  } else if (flags.generation_config != "vllm") {
    lay_over(out, read_file(flags.generation_config), flags.generation_config);
  }
  lay_over(out, flags.override_generation_config, "--override-generation-config");
  return out;
}

}  // namespace winnow::cli
