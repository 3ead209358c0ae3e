// JSON files of a checkpoint folder, read with limits: they come from strangers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace winnow {

inline constexpr std::int64_t kMaxJsonBytes = std::int64_t{100} << 20;
inline constexpr int kMaxJsonDepth = 32;

/// Parses `text`; `name` is for messages. Throws Error{kInvalidCheckpoint} with the position of a
/// syntax error, on nesting deeper than kMaxJsonDepth, and when the text is not an object.
nlohmann::json parse_json_object(std::string_view text, std::string_view name);

/// The same of a file. Throws Error{kIo} when it cannot be read, kInvalidCheckpoint beyond
/// kMaxJsonBytes.
nlohmann::json read_json_object(const std::filesystem::path& path);

}  // namespace winnow
