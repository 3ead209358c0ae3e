// Conversions between text and numbers as Python's int(), float() and round() do them.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace winnow::jinja {

/// The filter int: `if_not` for what is no number.
Value convert_to_int(Interpreter& interpreter, const Value& value, const Value& if_not,
                     std::int64_t base);
/// The filter float.
Value convert_to_float(Interpreter& interpreter, const Value& value, const Value& if_not);
/// The filter round; method is common (half to even), ceil or floor.
Value round_number(Interpreter& interpreter, const Value& value, std::int64_t precision,
                   std::string_view method);

/// An integer in decimal, of any size.
Value integer_from_digits(std::string_view digits, bool is_negative);

}  // namespace winnow::jinja
