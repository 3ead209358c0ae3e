// Python's operators on template values. Each fails (Interpreter::fail) where Python raises.
#pragma once

#include <compare>

#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"

namespace winnow::jinja {

Value apply_binary(Interpreter& interpreter, Binary::Kind kind, const Value& left,
                   const Value& right);
Value negate(Interpreter& interpreter, const Value& value);

/// Order of numbers, strings and lists.
std::partial_ordering order(Interpreter& interpreter, const Value& left, const Value& right);
bool contains(Interpreter& interpreter, const Value& container, const Value& item);

/// object.name: a method or attribute, else the item of that name, else undefined.
Value get_attribute(Interpreter& interpreter, const Value& object, std::string_view name);
/// object[key]: the item, else for a string the attribute, else undefined.
Value get_item(Interpreter& interpreter, const Value& object, const Value& key);
Value get_slice(Interpreter& interpreter, const Value& object, const Value& start,
                const Value& stop, const Value& step);

/// len(); fails for what has none.
std::int64_t length_of(Interpreter& interpreter, const Value& value);

/// bool and int as an integer.
std::optional<std::int64_t> as_integer(const Value& value);
/// bool, int and float as a float.
std::optional<double> as_float(const Value& value);

}  // namespace winnow::jinja
