// "…" % values and "…".format(values), as far as templates use them: text, integers and floats
// with sign, fill, width and precision.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/numbers.h"
#include "text/jinja/operators.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

constexpr std::int64_t kMaxWidth = 10'000;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool is_alternate = false;
  char grouping = '\0';
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = '\0';
};

std::int64_t read_number(Interpreter& interpreter, std::string_view text, std::size_t& i) {
  std::int64_t value = 0;
  while (i < text.size() && text[i] >= '0' && text[i] <= '9') {
    value = value * 10 + (text[i++] - '0');
    if (value > kMaxWidth) interpreter.fail("format: a width or precision beyond 10000");
  }
  return value;
}

std::string group_digits(const std::string& digits, char separator) {
  const std::size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < end; ++i) {
    if (i > 0 && (end - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(end);
}

Text pad(const Spec& spec, char default_align, std::string_view prefix, const Text& body) {
  const auto size = static_cast<std::int64_t>(prefix.size() + count_characters(body.bytes()));
  const std::int64_t padding = std::max<std::int64_t>(spec.width - size, 0);
  const char align = spec.align == '\0' ? default_align : spec.align;
  const std::int64_t left = align == '>' ? padding : align == '^' ? padding / 2 : 0;
  const std::int64_t middle = align == '=' ? padding : 0;
  Text out;
  const auto fill = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) out.append(spec.fill, Origin::kTemplate);
  };
  fill(left);
  out.append(prefix, Origin::kTemplate);
  fill(middle);
  out.append(body);
  fill(padding - left - middle);
  return out;
}

// Digits of |value| in the style of a float conversion.
std::string float_digits(const Spec& spec, double value) {
  const bool is_upper = spec.type == 'E' || spec.type == 'G' || spec.type == 'F';
  if (!std::isfinite(value)) {
    const std::string word = std::isnan(value) ? "nan" : "inf";
    return is_upper ? fmt::format("{}", word == "nan" ? "NAN" : "INF") : word;
  }
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  switch (spec.type) {
    case 'e':
      return fmt::format("{:.{}e}", value, precision);
    case 'E':
      return fmt::format("{:.{}E}", value, precision);
    case 'g':
      return fmt::format("{:.{}g}", value, std::max(precision, 1));
    case 'G':
      return fmt::format("{:.{}G}", value, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", value * 100, precision);
    default:
      return fmt::format("{:.{}f}", value, precision);
  }
}

Text format_number(Interpreter& interpreter, const Spec& spec, const Value& value) {
  std::string digits;
  bool is_negative = false;
  const bool is_float_type =
      spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (value.is<double>() || is_float_type) {
    const double number = *as_float(value);
    is_negative = std::signbit(number);
    if (spec.type == '\0' && spec.precision < 0) {
      digits = float_repr(std::abs(number));
    } else {
      Spec chosen = spec;
      if (spec.type == '\0') chosen.type = 'g';
      digits = float_digits(chosen, std::abs(number));
    }
  } else {
    const std::optional<std::int64_t> integer = as_integer(value);
    if (integer) {
      is_negative = *integer < 0;
      const std::uint64_t magnitude = is_negative ? 0 - static_cast<std::uint64_t>(*integer)
                                                  : static_cast<std::uint64_t>(*integer);
      switch (spec.type) {
        case 'x':
          digits = fmt::format("{}{:x}", spec.is_alternate ? "0x" : "", magnitude);
          break;
        case 'X':
          digits = fmt::format("{}{:X}", spec.is_alternate ? "0X" : "", magnitude);
          break;
        case 'o':
          digits = fmt::format("{}{:o}", spec.is_alternate ? "0o" : "", magnitude);
          break;
        case 'b':
          digits = fmt::format("{}{:b}", spec.is_alternate ? "0b" : "", magnitude);
          break;
        case '\0':
        case 'd':
        case 'i':
        case 'u':
        case 'n':
          digits = fmt::format("{}", magnitude);
          break;
        default:
          interpreter.fail(fmt::format("format: unknown conversion '{}' of an int", spec.type));
      }
    } else {
      digits = repr(value).bytes();
      is_negative = digits.starts_with('-');
      if (is_negative) digits.erase(0, 1);
    }
  }
  if (spec.grouping != '\0') digits = group_digits(digits, spec.grouping);
  std::string_view sign = is_negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  return pad(spec, '>', sign, Text(std::move(digits), Origin::kTemplate));
}

Text format_text(const Spec& spec, Text text) {
  if (spec.precision >= 0) {
    std::size_t end = 0;
    for (std::int64_t i = 0; i < spec.precision && end < text.size(); ++i) {
      end += step_utf8(text.bytes(), end).num_bytes;
    }
    text = text.part(0, end);
  }
  return pad(spec, '<', "", text);
}

// --- % ---------------------------------------------------------------------------------------

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& interpreter, const Text& pattern, const Value& arguments)
      : interpreter_(interpreter), pattern_(pattern), bytes_(pattern.bytes()) {
    const List* list = arguments.list();
    if (list != nullptr && list->flavor == List::Flavor::kTuple) {
      values_ = list->items;
    } else {
      values_ = {arguments};
      dict_ = arguments.dict();
      may_be_unused_ = dict_ != nullptr || list != nullptr;
    }
  }

  Text run() {
    std::size_t begin = 0;
    while (true) {
      const std::size_t percent = std::min(bytes_.find('%', begin), bytes_.size());
      out_.append(pattern_.part(begin, percent));
      if (percent == bytes_.size()) break;
      position_ = percent + 1;
      convert();
      begin = position_;
    }
    if (next_ < values_.size() && !may_be_unused_) {
      interpreter_.fail("%: not all arguments were converted");
    }
    return std::move(out_);
  }

 private:
  char current() const { return position_ < bytes_.size() ? bytes_[position_] : '\0'; }

  const Value& next_value() {
    if (next_ >= values_.size()) interpreter_.fail("%: not enough arguments");
    return values_[next_++];
  }

  void convert() {
    const Value* named = nullptr;
    if (current() == '(') {
      const std::size_t close = bytes_.find(')', position_);
      if (close == std::string::npos) interpreter_.fail("%: incomplete key");
      if (dict_ == nullptr) interpreter_.fail("%: a mapping is required");
      named = dict_->find(std::string_view(bytes_).substr(position_ + 1, close - position_ - 1));
      if (named == nullptr) interpreter_.fail("%: a key is missing from the mapping");
      position_ = close + 1;
    }
    Spec spec;
    bool is_zero = false;
    for (;; ++position_) {
      const char flag = current();
      if (flag == '-') {
        spec.align = '<';
      } else if (flag == '+') {
        spec.sign = '+';
      } else if (flag == ' ') {
        if (spec.sign != '+') spec.sign = ' ';
      } else if (flag == '0') {
        is_zero = true;
      } else if (flag == '#') {
        spec.is_alternate = true;
      } else {
        break;
      }
    }
    spec.width = read_number(interpreter_, bytes_, position_);
    if (current() == '.') {
      ++position_;
      spec.precision = read_number(interpreter_, bytes_, position_);
    }
    spec.type = current();
    if (spec.type == '\0') interpreter_.fail("%: incomplete format");
    ++position_;
    if (spec.type == '%') {
      out_.append("%", Origin::kTemplate);
      return;
    }
    put(spec, is_zero, named == nullptr ? next_value() : *named);
  }

  void put(Spec spec, bool is_zero, const Value& value) {
    interpreter_.charge_bytes(static_cast<std::size_t>(spec.width));
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
      Text text = spec.type == 's' ? to_text(value) : repr(value);
      interpreter_.charge_bytes(text.size());
      if (spec.align == '\0') spec.align = '>';
      out_.append(format_text(spec, std::move(text)));
      return;
    }
    if (spec.type == 'c' && value.text() != nullptr) {
      out_.append(*value.text());
      return;
    }
    if (std::string_view("diuxXoeEfFgG").find(spec.type) == std::string_view::npos) {
      interpreter_.fail(fmt::format("%: unknown conversion '{}'", spec.type));
    }
    if (!is_number(value)) {
      interpreter_.fail(fmt::format("%{} of a {}", spec.type, type_name(value)));
    }
    if (is_zero && spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
    const bool is_integer_type =
        std::string_view("diuxXo").find(spec.type) != std::string_view::npos;
    Value number = value;
    if (is_integer_type && value.is<double>()) {
      if (spec.type != 'd' && spec.type != 'i' && spec.type != 'u') {
        interpreter_.fail(fmt::format("%{} of a float", spec.type));
      }
      number = convert_to_int(interpreter_, value, None{}, 10);
      if (number.is_none()) interpreter_.fail("%d of a float that is not finite");
    }
    if (is_integer_type) spec.precision = -1;
    out_.append(format_number(interpreter_, spec, number));
  }

  Interpreter& interpreter_;
  const Text& pattern_;
  const std::string& bytes_;
  std::vector<Value> values_;
  const Dict* dict_ = nullptr;
  bool may_be_unused_ = false;
  std::size_t next_ = 0;
  std::size_t position_ = 0;
  Text out_;
};

// --- format() --------------------------------------------------------------------------------

Spec read_spec(Interpreter& interpreter, std::string_view text) {
  Spec spec;
  std::size_t i = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const std::size_t first = text.empty() ? 0 : step_utf8(text, 0).num_bytes;
  if (first < text.size() && is_align(text[first])) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    i = first + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    i = 1;
  }
  const auto at = [&] { return i < text.size() ? text[i] : '\0'; };
  if (at() == '+' || at() == '-' || at() == ' ') spec.sign = text[i++];
  if (at() == '#') {
    spec.is_alternate = true;
    ++i;
  }
  if (at() == '0') {
    if (spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
    ++i;
  }
  spec.width = read_number(interpreter, text, i);
  if (at() == ',' || at() == '_') spec.grouping = text[i++];
  if (at() == '.') {
    ++i;
    spec.precision = read_number(interpreter, text, i);
  }
  if (i < text.size()) spec.type = text[i++];
  if (i != text.size()) interpreter.fail(fmt::format("format: invalid specification '{}'", text));
  return spec;
}

Text format_value(Interpreter& interpreter, const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return to_text(value);
  Spec spec = read_spec(interpreter, spec_text);
  interpreter.charge_bytes(static_cast<std::size_t>(spec.width));
  if (const Text* text = value.text()) {
    if ((spec.type != '\0' && spec.type != 's') || spec.align == '=') {
      interpreter.fail(fmt::format("format: '{}' does not fit a str", spec_text));
    }
    return format_text(spec, *text);
  }
  if (value.is<bool>() && spec.type == '\0') return format_text(spec, to_text(value));
  if (!is_number(value) || spec.type == 's') {
    interpreter.fail(fmt::format("format: '{}' does not fit a {}", spec_text, type_name(value)));
  }
  return format_number(interpreter, spec, value);
}

// name, then .attribute and [item] parts.
Value look_up(Interpreter& interpreter, std::string_view field, const Arguments& arguments,
              std::size_t& automatic) {
  const std::size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  Value value;
  if (name.empty() || name.find_first_not_of("0123456789") == std::string_view::npos) {
    std::size_t digits = 0;
    const std::size_t index =
        name.empty() ? automatic++
                     : static_cast<std::size_t>(read_number(interpreter, name, digits));
    if (index >= arguments.positional.size()) interpreter.fail("format: not enough arguments");
    value = arguments.positional[index];
  } else {
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& item) { return item.first == name; });
    if (found == arguments.named.end()) {
      interpreter.fail(fmt::format("format: no argument '{}'", name));
    }
    value = found->second;
  }
  std::string_view rest = field.substr(end);
  while (!rest.empty()) {
    if (rest[0] == '.') {
      const std::size_t stop = std::min(rest.find_first_of(".[", 1), rest.size());
      value = get_attribute(interpreter, value, rest.substr(1, stop - 1));
      rest.remove_prefix(stop);
      continue;
    }
    const std::size_t close = rest.find(']');
    if (rest[0] != '[' || close == std::string_view::npos) {
      interpreter.fail("format: an unclosed [ in a field");
    }
    const std::string key(rest.substr(1, close - 1));
    const bool is_index =
        !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    value =
        get_item(interpreter, value,
                 is_index ? Value(std::int64_t{std::stol(key)}) : Value(key, Origin::kTemplate));
    rest.remove_prefix(close + 1);
  }
  return value;
}

}  // namespace

Text format_percent(Interpreter& interpreter, const Text& pattern, const Value& arguments) {
  return PercentFormatter(interpreter, pattern, arguments).run();
}

Text format_braces(Interpreter& interpreter, const Text& pattern, Arguments& arguments) {
  const std::string& bytes = pattern.bytes();
  Text out;
  std::size_t automatic = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t brace = std::min(bytes.find_first_of("{}", i), bytes.size());
    out.append(pattern.part(i, brace));
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {  // {{ or }}
      out.append(pattern.part(brace, brace + 1));
      i = brace + 2;
      continue;
    }
    const std::size_t close = bytes.find('}', brace);
    if (bytes[brace] == '}' || close == std::string::npos) {
      interpreter.fail("format: a single brace");
    }
    const std::string_view field = std::string_view(bytes).substr(brace + 1, close - brace - 1);
    if (field.find('{') != std::string_view::npos) {
      interpreter.fail("format: fields inside a specification are not offered");
    }
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::size_t mark = std::min(field.substr(0, colon).find('!'), colon);
    Value value = look_up(interpreter, field.substr(0, mark), arguments, automatic);
    const std::string_view conversion = field.substr(mark, colon - mark);
    if (conversion == "!r" || conversion == "!a") {
      value = Value(repr(value));
    } else if (conversion == "!s") {
      value = Value(to_text(value));
    } else if (!conversion.empty()) {
      interpreter.fail(fmt::format("format: unknown conversion '{}'", conversion));
    }
    const std::string_view spec =
        colon < field.size() ? field.substr(colon + 1) : std::string_view();
    const Text text = format_value(interpreter, value, spec);
    interpreter.charge_bytes(text.size());
    out.append(text);
    i = close + 1;
  }
  return out;
}

}  // namespace winnow::jinja
