#include "text/jinja/builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "text/jinja/characters.h"
#include "text/jinja/operators.h"
#include "text/unicode.h"

namespace winnow::jinja {

Bound::Bound(Interpreter& interpreter, std::string_view function, Arguments& arguments,
             std::initializer_list<std::string_view> names)
    : interpreter_(interpreter), function_(function) {
  if (arguments.positional.size() > names.size()) {
    interpreter.fail(fmt::format("{} takes at most {} arguments, got {}", function, names.size(),
                                 arguments.positional.size()));
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) {
      interpreter.fail(fmt::format("{} has no parameter '{}'", function, name));
    }
    if (values_[index] != nullptr) {
      interpreter.fail(fmt::format("{}: '{}' is given twice", function, name));
    }
    values_[index] = &value;
  }
}

const Value& Bound::at(std::size_t index) const {
  if (values_[index] == nullptr) {
    interpreter_.fail(fmt::format("{}: argument {} is missing", function_, index + 1));
  }
  return *values_[index];
}

std::int64_t Bound::integer(std::size_t index, std::int64_t if_absent) const {
  if (values_[index] == nullptr || values_[index]->is_none()) return if_absent;
  const std::optional<std::int64_t> value = as_integer(*values_[index]);
  if (!value) {
    interpreter_.fail(fmt::format("{}: argument {} is a {}, expected an int", function_, index + 1,
                                  type_name(*values_[index])));
  }
  return *value;
}

Text Bound::text(std::size_t index, std::string_view if_absent) const {
  if (values_[index] == nullptr || values_[index]->is_none()) {
    return Text(std::string(if_absent), Origin::kTemplate);
  }
  return need_text(interpreter_, function_, *values_[index]);
}

bool Bound::truth(std::size_t index, bool if_absent) const {
  return values_[index] == nullptr ? if_absent : is_true(*values_[index]);
}

Value Bound::value(std::size_t index, const Value& if_absent) const {
  return values_[index] == nullptr ? if_absent : *values_[index];
}

const Text& need_text(Interpreter& interpreter, std::string_view function, const Value& value) {
  const Text* text = value.text();
  if (text == nullptr) {
    interpreter.fail(fmt::format("{}: a {}, expected a str", function, type_name(value)));
  }
  return *text;
}

bool is_changing_method(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                        "insert", "sort",  "extend", "remove"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  const List* list = object.list();
  return (list != nullptr && list->flavor == List::Flavor::kList && has(kList)) ||
         (object.dict() != nullptr && has(kDict));
}

Text replace_text(Interpreter& interpreter, const Text& text, const Text& from, const Text& to,
                  std::int64_t count) {
  Text out;
  if (count < 0) count = INT64_MAX;
  if (from.empty()) {  // before every character and at the end
    const std::vector<std::size_t> positions = character_positions(text.bytes());
    for (std::size_t i = 0; i < positions.size(); ++i) {
      if (count-- > 0) {
        interpreter.charge_bytes(to.size());
        out.append(to);
      }
      if (i + 1 < positions.size()) out.append(text.part(positions[i], positions[i + 1]));
    }
    return out;
  }
  std::size_t begin = 0;
  const std::string& bytes = text.bytes();
  while (count-- > 0) {
    const void* found =
        memmem(bytes.data() + begin, bytes.size() - begin, from.bytes().data(), from.size());
    if (found == nullptr) break;
    const auto at = static_cast<std::size_t>(static_cast<const char*>(found) - bytes.data());
    interpreter.charge_steps();
    interpreter.charge_bytes(to.size());
    out.append(text.part(begin, at));
    out.append(to);
    begin = at + from.size();
  }
  out.append(text.part(begin, bytes.size()));
  return out;
}

Text strip_text(const Text& text, const Text* characters, bool left, bool right) {
  const std::string& bytes = text.bytes();
  const auto is_stripped = [&](std::size_t at, std::size_t length) {
    if (characters == nullptr) return is_python_space(step_utf8(bytes, at).code_point);
    // A whole character of a well-formed string cannot match inside another one.
    return characters->bytes().find(bytes.substr(at, length)) != std::string::npos;
  };
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (left && begin < end) {
    const std::size_t length = step_utf8(bytes, begin).num_bytes;
    if (!is_stripped(begin, length)) break;
    begin += length;
  }
  while (right && begin < end) {
    std::size_t at = end - 1;
    while (at > begin && (static_cast<unsigned char>(bytes[at]) & 0xC0) == 0x80) --at;
    if (!is_stripped(at, end - at)) break;
    end = at;
  }
  return text.part(begin, end);
}

}  // namespace winnow::jinja
