#include "checkpoint/json_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"

namespace winnow {

nlohmann::json parse_json_object(std::string_view text, std::string_view name) {
  using nlohmann::json;
  const auto check_depth = [&](int depth, json::parse_event_t, const json&) {
    if (depth > kMaxJsonDepth) {
      throw Error(ErrorCode::kInvalidCheckpoint,
                  fmt::format("{}: nested deeper than {} levels", name, kMaxJsonDepth));
    }
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(text.begin(), text.end(), check_depth);
  } catch (const json::exception& error) {  // a number beyond double's range is no parse_error
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: not valid JSON: {}", name, error.what()));
  }
  if (!parsed.is_object()) {
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: holds {}, expected an object", name, parsed.type_name()));
  }
  return parsed;
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  if (static_cast<std::int64_t>(bytes.size()) > kMaxJsonBytes) {
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: {} bytes, expected at most {}", path.string(), bytes.size(),
                            kMaxJsonBytes));
  }
  return parse_json_object({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           path.string());
}

}  // namespace winnow
