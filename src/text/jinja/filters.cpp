// Filters on single values: text, numbers, defaults, JSON. Behaviour: jinja2's filters.py and, for
// tojson, transformers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/json.h"
#include "text/jinja/numbers.h"
#include "text/jinja/operators.h"
#include "text/jinja/sequence_filters.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

void no_arguments(Interpreter& interpreter, std::string_view name, Arguments& arguments) {
  const Bound none(interpreter, name, arguments, {});
}

template <std::string (*transform)(std::string_view)>
Value transform_text(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  no_arguments(interpreter, "the filter", arguments);
  const Text text = to_text(input);
  return interpreter.make_text(transform(text.bytes()), text.origin());
}

// Upper case after the start, white space and - ( { [ <; lower case elsewhere.
std::string title_words(std::string_view text) {
  std::string out;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    const std::size_t first = step_utf8(word, 0).num_bytes;
    out += to_upper(std::string_view(word).substr(0, first));
    out += to_lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = step_utf8(text, i);
    const std::string_view one = text.substr(i, step.num_bytes);
    const bool is_separator = is_python_space(step.code_point) ||
                              std::string_view("-({[<").find(one) != std::string_view::npos;
    if (is_separator) {
      flush();
      out += one;
    } else {
      word += one;
    }
    i += step.num_bytes;
  }
  flush();
  return out;
}

Value trim(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "trim", arguments, {"chars"});
  const bool has_chars = bound.has(0) && !bound.at(0).is_none();
  const Text chars = bound.text(0, "");
  return interpreter.make_text(
      strip_text(to_text(input), has_chars ? &chars : nullptr, true, true));
}

Value replace(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "replace", arguments, {"old", "new", "count"});
  return interpreter.make_text(replace_text(interpreter, to_text(input), to_text(bound.at(0)),
                                            to_text(bound.at(1)), bound.integer(2, -1)));
}

Value indent(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "indent", arguments, {"width", "first", "blank"});
  Text indentation;
  if (bound.has(0) && bound.at(0).text() != nullptr) {
    indentation = *bound.at(0).text();
  } else {
    const std::int64_t width = std::max<std::int64_t>(bound.integer(0, 4), 0);
    interpreter.charge_bytes(static_cast<std::size_t>(width));
    indentation = Text(std::string(static_cast<std::size_t>(width), ' '), Origin::kTemplate);
  }
  const bool blank = bound.truth(2, false);
  Text text = to_text(input);
  text.append("\n", Origin::kTemplate);
  const std::vector<Text> lines = split_lines(text, false);
  Text out;
  if (bound.truth(1, false)) out.append(indentation);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", Origin::kTemplate);
      interpreter.charge_bytes(indentation.size());
      if (blank || !lines[i].empty()) out.append(indentation);
    }
    out.append(lines[i]);
  }
  return interpreter.make_text(std::move(out));
}

Value escape(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  no_arguments(interpreter, "escape", arguments);
  const Text text = to_text(input);
  Text out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    constexpr std::string_view kSpecial = "&<>'\"";
    constexpr std::string_view kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const std::size_t which = kSpecial.find(text.bytes()[i]);
    if (which == std::string_view::npos) continue;
    out.append(text.part(begin, i));
    out.append(kEscapes[which], text.origin());
    begin = i + 1;
  }
  out.append(text.part(begin, text.size()));
  return interpreter.make_text(std::move(out));
}

Value as_string(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  no_arguments(interpreter, "string", arguments);
  return interpreter.make_text(to_text(input));
}

Value format(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    interpreter.fail("format takes arguments by position or by name, not both");
  }
  Value values;
  if (arguments.named.empty()) {
    values = Value(make_list(arguments.positional, List::Flavor::kTuple));
  } else {
    Dict dict;
    for (const auto& [name, value] : arguments.named) {
      dict.set(Value(name, Origin::kTemplate), value);
    }
    values = Value(make_dict(std::move(dict)));
  }
  return interpreter.make_text(format_percent(interpreter, to_text(input), values));
}

Value center(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Value text(to_text(input));
  if (arguments.positional.empty() && arguments.named.empty())
    arguments.positional.emplace_back(80);
  for (auto& [name, value] : arguments.named) {
    if (name == "width") arguments.positional.push_back(value);
  }
  arguments.named.clear();
  return find_text_method("center")(interpreter, text, arguments);
}

Value word_count(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  no_arguments(interpreter, "wordcount", arguments);
  const Text text = to_text(input);
  std::int64_t count = 0;
  bool in_word = false;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = step_utf8(text.bytes(), i);
    const bool is_word_character = is_word(step.code_point);
    if (is_word_character && !in_word) ++count;
    in_word = is_word_character;
    i += step.num_bytes;
  }
  return count;
}

Value default_value(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "default", arguments, {"default_value", "boolean"});
  const bool is_replaced = input.is_undefined() || (bound.truth(1, false) && !is_true(input));
  return is_replaced ? bound.value(0, Value("")) : input;
}

Value tojson(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "tojson", arguments,
                    {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (bound.has(1) && !bound.at(1).is_none()) {
    style.has_indent = true;
    style.item_separator = ",";
    if (const Text* text = bound.at(1).text()) {
      style.indent = text->bytes();
    } else {
      const std::int64_t width = std::clamp<std::int64_t>(bound.integer(1, 0), 0, 1000);
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
  }
  if (bound.has(2) && !bound.at(2).is_none()) {
    const std::vector<Value> separators = interpreter.iterate(bound.at(2));
    if (separators.size() != 2) interpreter.fail("tojson: separators must be two strings");
    style.item_separator = need_text(interpreter, "tojson", separators[0]).bytes();
    style.key_separator = need_text(interpreter, "tojson", separators[1]).bytes();
  }
  if (const Undefined* undefined = input.get_if<Undefined>()) {
    interpreter.fail(undefined->reason == nullptr ? "tojson of an undefined value"
                                                  : "tojson: " + *undefined->reason);
  }
  return interpreter.make_text(to_json(input, style));
}

Value to_int(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "int", arguments, {"default", "base"});
  return convert_to_int(interpreter, input, bound.value(0, Value(0)), bound.integer(1, 10));
}

Value to_float(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "float", arguments, {"default"});
  return convert_to_float(interpreter, input, bound.value(0, Value(0.0)));
}

Value round(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "round", arguments, {"precision", "method"});
  return round_number(interpreter, input, bound.integer(0, 0), bound.text(1, "common").bytes());
}

Value absolute(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  no_arguments(interpreter, "abs", arguments);
  if (const double* d = input.get_if<double>()) return std::abs(*d);
  if (const BigInt* big = input.get_if<BigInt>()) {
    return (*big->digits)[0] == '-' ? negate(interpreter, input) : input;
  }
  const std::optional<std::int64_t> i = as_integer(input);
  if (!i) interpreter.fail(fmt::format("abs of a {}", type_name(input)));
  return *i < 0 ? negate(interpreter, Value(*i)) : Value(*i);
}

Value attr(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  const Bound bound(interpreter, "attr", arguments, {"name"});
  const Text name = to_text(bound.at(0));
  if (input.dict() != nullptr && find_dict_method(name.bytes()) == nullptr) {
    return Value::undefined(fmt::format("'dict' has no attribute '{}'", name.bytes()));
  }
  return get_attribute(interpreter, input, name.bytes());
}

Value pass_through(Interpreter& interpreter, const Value& input, Arguments& arguments) {
  return as_string(interpreter, input, arguments);
}

struct Entry {
  std::string_view name;
  Filter filter;
};

constexpr Entry kFilters[] = {
    {"abs", absolute},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", transform_text<to_capitalized>},
    {"center", center},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dictsort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_float},
    {"forceescape", escape},
    {"format", format},
    {"groupby", groupby},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", transform_text<to_lower>},
    {"map", map},
    {"max", maximum},
    {"min", minimum},
    {"reject", reject},
    {"rejectattr", rejectattr},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", pass_through},
    {"select", select},
    {"selectattr", selectattr},
    {"slice", slice},
    {"sort", sort},
    {"string", as_string},
    {"sum", sum},
    {"title", transform_text<title_words>},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", transform_text<to_upper>},
    {"wordcount", word_count},
};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace winnow::jinja
