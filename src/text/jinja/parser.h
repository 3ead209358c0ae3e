// Tokens to a Program; the grammar and its precedences are jinja2's.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/ast.h"

namespace winnow::jinja {

/// Throws Error (kInvalidCheckpoint) with `name` and the line.
Program parse_template(std::string_view source, std::string name);

}  // namespace winnow::jinja
