// A look over a JSON text before it is parsed: bounds its depth, and names the field when a number
// is none (NaN, Infinity, 1e999), which a JSON parser reports by byte offset only.
#pragma once

#include <string_view>

namespace winnow::server {

inline constexpr int kMaxJsonDepth = 64;

/// Throws Error{kInvalidArgument} with the field as param, or Error{kInvalidJson} when nested too
/// deep. Other faults are left to the parser. Time is linear, no allocation per value.
void check_json_text(std::string_view text, int max_depth = kMaxJsonDepth);

}  // namespace winnow::server
