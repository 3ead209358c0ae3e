// JSON to template values and back. Key order and the kind of each number are kept: 1 stays an
// integer, 1.0 a float, and integers beyond 64 bits keep their digits.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace winnow::jinja {

/// Strings get origin kValue. Throws Error (kInvalidJson) for what is not JSON, nested too deeply
/// or not well-formed UTF-8. Of a repeated key the last value counts.
Value parse_json(std::string_view json);

/// The same for a parsed document; nlohmann has turned integers beyond 64 bits into doubles.
Value from_json(const nlohmann::ordered_json& json);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;  // one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Python's json.dumps. Throws Error (kInvalidArgument) for what JSON cannot hold.
Text to_json(const Value& value, const JsonStyle& style);

}  // namespace winnow::jinja
