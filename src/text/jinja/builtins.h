// Filters, tests, global functions and methods of strings, lists and mappings, by name.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace winnow::jinja {

using Method = Value (*)(Interpreter& interpreter, const Value& self, Arguments& arguments);

/// nullptr for an unknown name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
CallablePtr find_global(std::string_view name);
Method find_text_method(std::string_view name);
Method find_list_method(std::string_view name);
Method find_dict_method(std::string_view name);

/// Methods that change a list or mapping: the sandbox that templates are written for refuses them.
bool is_changing_method(const Value& object, std::string_view name);

/// Matches arguments to parameter names: values by position, then by name. The object refers to
/// `arguments`, which must outlive it.
class Bound {
 public:
  /// Fails for too many, unknown or repeated arguments.
  Bound(Interpreter& interpreter, std::string_view function, Arguments& arguments,
        std::initializer_list<std::string_view> names);

  bool has(std::size_t index) const { return values_[index] != nullptr; }
  /// Fails if absent.
  const Value& at(std::size_t index) const;
  /// None counts as absent.
  std::int64_t integer(std::size_t index, std::int64_t if_absent) const;
  Text text(std::size_t index, std::string_view if_absent) const;
  bool truth(std::size_t index, bool if_absent) const;
  Value value(std::size_t index, const Value& if_absent) const;

 private:
  Interpreter& interpreter_;
  std::string_view function_;
  std::array<const Value*, 8> values_{};
};

/// The string itself; fails for anything else.
const Text& need_text(Interpreter& interpreter, std::string_view function, const Value& value);

/// "…" % arguments.
Text format_percent(Interpreter& interpreter, const Text& pattern, const Value& arguments);
/// "…".format(arguments): fields {}, {0}, {name} with a format specification.
Text format_braces(Interpreter& interpreter, const Text& pattern, Arguments& arguments);

/// Non-overlapping replacements, as str.replace; a negative count means all.
Text replace_text(Interpreter& interpreter, const Text& text, const Text& from, const Text& to,
                  std::int64_t count);

/// str.strip: white space, or the characters of *characters.
Text strip_text(const Text& text, const Text* characters, bool left, bool right);

}  // namespace winnow::jinja
