// Methods of strings. Behaviour: Python's str; positions count characters.
#include <fmt/format.h>

#include <unicode/uchar.h>

#include <algorithm>
#include <cstring>

#include "text/jinja/builtins.h"
#include "text/jinja/characters.h"
#include "text/jinja/operators.h"
#include "text/jinja/sequence_filters.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

#define WINNOW_METHOD(name) \
  Value name(Interpreter& interpreter, const Value& self, Arguments& arguments)

const Text& text_of(const Value& self) { return *self.text(); }

template <std::string (*transform)(std::string_view)>
WINNOW_METHOD(transformed) {
  const Bound none(interpreter, "the method", arguments, {});
  const Text& text = text_of(self);
  return interpreter.make_text(transform(text.bytes()), text.origin());
}

template <bool left, bool right>
WINNOW_METHOD(strip) {
  const Bound bound(interpreter, "strip", arguments, {"chars"});
  const bool has_chars = bound.has(0) && !bound.at(0).is_none();
  const Text chars = bound.text(0, "");
  return interpreter.make_text(
      strip_text(text_of(self), has_chars ? &chars : nullptr, left, right));
}

// Byte range of [start, end) given in characters.
struct Window {
  std::size_t begin;
  std::size_t end;
  bool is_valid;  // start does not lie behind end or the text
};

Window window_of(const Text& text, const Bound& bound, std::size_t first_index) {
  const std::vector<std::size_t> positions = character_positions(text.bytes());
  const auto size = static_cast<std::int64_t>(positions.size()) - 1;
  std::int64_t start = bound.integer(first_index, 0);
  std::int64_t end = bound.integer(first_index + 1, size);
  if (start < 0) start = std::max<std::int64_t>(start + size, 0);
  if (end < 0) end = std::max<std::int64_t>(end + size, 0);
  end = std::min(end, size);
  if (start > size || start > end) return {text.size(), text.size(), false};
  return {positions[static_cast<std::size_t>(start)], positions[static_cast<std::size_t>(end)],
          true};
}

template <bool at_start>
WINNOW_METHOD(has_affix) {
  const Bound bound(interpreter, at_start ? "startswith" : "endswith", arguments,
                    {"affix", "start", "end"});
  const Window window = window_of(text_of(self), bound, 1);
  const std::string_view part =
      std::string_view(text_of(self).bytes()).substr(window.begin, window.end - window.begin);
  const auto matches = [&](const Value& affix) {
    const std::string& bytes = need_text(interpreter, "startswith or endswith", affix).bytes();
    return window.is_valid && (at_start ? part.starts_with(bytes) : part.ends_with(bytes));
  };
  const List* list = bound.at(0).list();
  if (list != nullptr && list->flavor == List::Flavor::kTuple) {
    return std::any_of(list->items.begin(), list->items.end(), matches);
  }
  return matches(bound.at(0));
}

// Byte position of `part` in the window, the first or the last.
std::optional<std::size_t> find_part(const Text& text, const Text& part, const Window& window,
                                     bool is_last) {
  if (!window.is_valid) return std::nullopt;
  const char* begin = text.bytes().data() + window.begin;
  const std::size_t size = window.end - window.begin;
  if (is_last) {
    const std::size_t at = std::string_view(begin, size).rfind(part.bytes());
    if (at == std::string_view::npos) return std::nullopt;
    return window.begin + at;
  }
  if (part.empty()) return window.begin;
  const void* found = memmem(begin, size, part.bytes().data(), part.size());
  if (found == nullptr) return std::nullopt;
  return static_cast<std::size_t>(static_cast<const char*>(found) - text.bytes().data());
}

template <bool is_last, bool must_exist>
WINNOW_METHOD(find) {
  const Bound bound(interpreter, "find", arguments, {"sub", "start", "end"});
  const Text& text = text_of(self);
  const Text& part = need_text(interpreter, "find", bound.at(0));
  const std::optional<std::size_t> at = find_part(text, part, window_of(text, bound, 1), is_last);
  if (at) {
    return static_cast<std::int64_t>(
        count_characters(std::string_view(text.bytes()).substr(0, *at)));
  }
  if (must_exist) interpreter.fail("index: the substring is not in the string");
  return -1;
}

WINNOW_METHOD(count) {
  const Bound bound(interpreter, "count", arguments, {"sub", "start", "end"});
  const Text& text = text_of(self);
  const Text& part = need_text(interpreter, "count", bound.at(0));
  Window window = window_of(text, bound, 1);
  if (!window.is_valid) return 0;
  if (part.empty()) {
    return static_cast<std::int64_t>(count_characters(
               std::string_view(text.bytes()).substr(window.begin, window.end - window.begin))) +
           1;
  }
  std::int64_t found = 0;
  while (const std::optional<std::size_t> at = find_part(text, part, window, false)) {
    ++found;
    interpreter.charge_steps();
    window.begin = *at + part.size();
  }
  return found;
}

WINNOW_METHOD(replaced) {
  const Bound bound(interpreter, "replace", arguments, {"old", "new", "count"});
  return interpreter.make_text(
      replace_text(interpreter, text_of(self), need_text(interpreter, "replace", bound.at(0)),
                   need_text(interpreter, "replace", bound.at(1)), bound.integer(2, -1)));
}

std::vector<Value> split_at_spaces(const Text& text, std::int64_t limit, bool from_right) {
  struct Span {
    std::size_t begin;
    std::size_t end;
  };
  std::vector<Span> words;
  const std::string& bytes = text.bytes();
  for (std::size_t i = 0; i < bytes.size();) {
    const Utf8Step step = step_utf8(bytes, i);
    if (!is_python_space(step.code_point)) {
      if (words.empty() || words.back().end != i) {
        words.push_back({i, i});
      }
      words.back().end = i + step.num_bytes;
    }
    i += step.num_bytes;
  }
  const auto most = static_cast<std::size_t>(limit < 0 ? INT64_MAX - 1 : limit) + 1;
  if (words.size() > most) {  // the rest stays in one piece
    if (from_right) {
      const std::size_t merged = words.size() - most;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(merged));
      words.front().begin = 0;
    } else {
      words.resize(most);
      words.back().end = bytes.size();
    }
  }
  std::vector<Value> parts;
  for (std::size_t i = 0; i < words.size(); ++i) {
    Text part = text.part(words[i].begin, words[i].end);
    parts.emplace_back(std::move(part));
  }
  return parts;
}

template <bool from_right>
WINNOW_METHOD(split) {
  const Bound bound(interpreter, "split", arguments, {"sep", "maxsplit"});
  const Text& text = text_of(self);
  std::int64_t limit = bound.integer(1, -1);
  if (!bound.has(0) || bound.at(0).is_none()) {
    return interpreter.make_items(split_at_spaces(text, limit, from_right));
  }
  const Text& separator = need_text(interpreter, "split", bound.at(0));
  if (separator.empty()) interpreter.fail("split: the separator is empty");
  if (limit < 0) limit = INT64_MAX;
  std::vector<Value> parts;
  Window window{0, text.size(), true};
  while (limit-- > 0) {
    interpreter.charge_steps();
    const std::optional<std::size_t> at = find_part(text, separator, window, from_right);
    if (!at) break;
    if (from_right) {
      parts.emplace_back(text.part(*at + separator.size(), window.end));
      window.end = *at;
    } else {
      parts.emplace_back(text.part(window.begin, *at));
      window.begin = *at + separator.size();
    }
  }
  parts.emplace_back(text.part(window.begin, window.end));
  if (from_right) std::reverse(parts.begin(), parts.end());
  interpreter.charge_bytes(text.size());
  return interpreter.make_items(std::move(parts));
}

template <bool from_right>
WINNOW_METHOD(partition) {
  const Bound bound(interpreter, "partition", arguments, {"sep"});
  const Text& text = text_of(self);
  const Text& separator = need_text(interpreter, "partition", bound.at(0));
  if (separator.empty()) interpreter.fail("partition: the separator is empty");
  const std::optional<std::size_t> at =
      find_part(text, separator, {0, text.size(), true}, from_right);
  std::vector<Value> parts;
  if (at) {
    const std::size_t after = *at + separator.size();
    parts = {Value(text.part(0, *at)), Value(text.part(*at, after)),
             Value(text.part(after, text.size()))};
  } else if (from_right) {
    parts = {Value(Text()), Value(Text()), self};
  } else {
    parts = {self, Value(Text()), Value(Text())};
  }
  return interpreter.make_items(std::move(parts), List::Flavor::kTuple);
}

WINNOW_METHOD(splitlines) {
  const Bound bound(interpreter, "splitlines", arguments, {"keepends"});
  std::vector<Value> lines;
  for (Text& line : split_lines(text_of(self), bound.truth(0, false))) {
    lines.emplace_back(std::move(line));
  }
  interpreter.charge_bytes(text_of(self).size());
  return interpreter.make_items(std::move(lines));
}

WINNOW_METHOD(join) {
  const Bound bound(interpreter, "join", arguments, {"iterable"});
  Text out;
  bool is_first = true;
  for (const Value& item : interpreter.iterate(bound.at(0))) {
    const Text& part = need_text(interpreter, "join", item);
    interpreter.charge_bytes(part.size() + text_of(self).size());
    if (!is_first) out.append(text_of(self));
    is_first = false;
    out.append(part);
  }
  return Value(std::move(out));
}

WINNOW_METHOD(format) {
  return interpreter.make_text(format_braces(interpreter, text_of(self), arguments));
}

template <bool is_prefix>
WINNOW_METHOD(remove_affix) {
  const Bound bound(interpreter, "removeprefix or removesuffix", arguments, {"affix"});
  const Text& text = text_of(self);
  const Text& affix = need_text(interpreter, "removeprefix or removesuffix", bound.at(0));
  const bool has_it =
      is_prefix ? text.bytes().starts_with(affix.bytes()) : text.bytes().ends_with(affix.bytes());
  if (!has_it) return self;
  return interpreter.make_text(is_prefix ? text.part(affix.size(), text.size())
                                         : text.part(0, text.size() - affix.size()));
}

enum class Side { kLeft, kRight, kCenter };

template <Side side>
WINNOW_METHOD(justify) {
  const Bound bound(interpreter, "ljust, rjust or center", arguments, {"width", "fillchar"});
  const Text& text = text_of(self);
  const Text fill = bound.text(1, " ");
  if (count_characters(fill.bytes()) != 1) interpreter.fail("the fill must be one character");
  bound.at(0);
  const std::int64_t width = bound.integer(0, 0);
  const auto size = static_cast<std::int64_t>(count_characters(text.bytes()));
  const std::int64_t padding = width - size;
  if (padding <= 0) return self;
  interpreter.charge_bytes(static_cast<std::size_t>(padding) * fill.size());
  // str.center puts the odd character on the left when both padding and width are odd.
  std::int64_t left = 0;
  if (side == Side::kRight) left = padding;
  if (side == Side::kCenter) left = padding / 2 + (padding & width & 1);
  Text out;
  for (std::int64_t i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (std::int64_t i = left; i < padding; ++i) out.append(fill);
  return interpreter.make_text(std::move(out));
}

WINNOW_METHOD(zfill) {
  const Bound bound(interpreter, "zfill", arguments, {"width"});
  const Text& text = text_of(self);
  bound.at(0);
  const auto size = static_cast<std::int64_t>(count_characters(text.bytes()));
  const std::int64_t padding = std::max<std::int64_t>(bound.integer(0, 0) - size, 0);
  interpreter.charge_bytes(static_cast<std::size_t>(padding));
  const bool has_sign = text.bytes().starts_with('-') || text.bytes().starts_with('+');
  Text out = text.part(0, has_sign ? 1 : 0);
  out.append(std::string(static_cast<std::size_t>(padding), '0'), Origin::kTemplate);
  out.append(text.part(has_sign ? 1 : 0, text.size()));
  return interpreter.make_text(std::move(out));
}

template <bool (*holds)(std::uint32_t), bool if_empty = false>
WINNOW_METHOD(all_are) {
  const Bound none(interpreter, "the method", arguments, {});
  const Text& text = text_of(self);
  if (text.empty()) return if_empty;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = step_utf8(text.bytes(), i);
    if (!holds(step.code_point)) return false;
    i += step.num_bytes;
  }
  return true;
}

bool is_alphabetic(std::uint32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}
bool is_decimal(std::uint32_t c) {
  return u_charType(static_cast<UChar32>(c)) == U_DECIMAL_DIGIT_NUMBER;
}
std::int32_t numeric_type(std::uint32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
}
bool is_digit(std::uint32_t c) {
  return numeric_type(c) == U_NT_DECIMAL || numeric_type(c) == U_NT_DIGIT;
}
bool has_numeric_type(std::uint32_t c) { return numeric_type(c) != U_NT_NONE; }
bool is_alphanumeric(std::uint32_t c) { return is_alphabetic(c) || has_numeric_type(c); }
bool is_ascii(std::uint32_t c) { return c < 0x80; }

template <bool (*has_case)(std::uint32_t)>
WINNOW_METHOD(is_case) {
  const Bound none(interpreter, "the method", arguments, {});
  Arguments nothing;
  return find_test(has_case == is_lower_case ? "lower" : "upper")(interpreter, self, nothing);
}

struct Entry {
  std::string_view name;
  Method method;
};

constexpr Entry kMethods[] = {
    {"capitalize", transformed<to_capitalized>},
    {"casefold", transformed<to_lower>},
    {"center", justify<Side::kCenter>},
    {"count", count},
    {"endswith", has_affix<false>},
    {"find", find<false, false>},
    {"format", format},
    {"index", find<false, true>},
    {"isalnum", all_are<is_alphanumeric>},
    {"isalpha", all_are<is_alphabetic>},
    {"isascii", all_are<is_ascii, true>},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"islower", is_case<is_lower_case>},
    {"isnumeric", all_are<has_numeric_type>},
    {"isspace", all_are<is_python_space>},
    {"isupper", is_case<is_upper_case>},
    {"join", join},
    {"ljust", justify<Side::kLeft>},
    {"lower", transformed<to_lower>},
    {"lstrip", strip<true, false>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replaced},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"rjust", justify<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", has_affix<true>},
    {"strip", strip<true, true>},
    {"swapcase", transformed<swap_case>},
    {"title", transformed<to_title>},
    {"upper", transformed<to_upper>},
    {"zfill", zfill},
};
#undef WINNOW_METHOD

}  // namespace

Method find_text_method(std::string_view name) {
  for (const Entry& entry : kMethods) {
    if (entry.name == name) return entry.method;
  }
  return nullptr;
}

}  // namespace winnow::jinja
