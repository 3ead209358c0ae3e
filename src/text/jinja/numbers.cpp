#include "text/jinja/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "text/jinja/characters.h"
#include "text/jinja/operators.h"

namespace winnow::jinja {

namespace {

// Underscores may stand between digits only.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
      continue;
    }
    const bool is_between =
        i > 0 && i + 1 < text.size() && hex_digit(text[i - 1]) >= 0 && hex_digit(text[i + 1]) >= 0;
    if (!is_between) return std::nullopt;
  }
  return out;
}

std::optional<Value> parse_int(std::string_view text, std::int64_t base) {
  const std::optional<std::string> plain = without_underscores(strip_space(text, true, true));
  if (!plain) return std::nullopt;
  std::string_view digits = *plain;
  bool is_negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    is_negative = digits[0] == '-';
    digits.remove_prefix(1);
  }
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const std::int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      digits.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 16 || digits.empty()) return std::nullopt;
  for (const char c : digits) {
    const int digit = hex_digit(c);
    if (digit < 0 || digit >= base) return std::nullopt;
  }
  if (base == 10) return integer_from_digits(digits, is_negative);
  std::int64_t value = 0;
  const auto parsed =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, static_cast<int>(base));
  if (parsed.ec != std::errc()) return std::nullopt;
  return Value(is_negative ? -value : value);
}

std::optional<double> parse_float(std::string_view text) {
  const std::optional<std::string> plain = without_underscores(strip_space(text, true, true));
  if (!plain || plain->empty()) return std::nullopt;
  // strtod also reads hexadecimal and "nan(…)", Python does not.
  const std::string lower = to_lower(*plain);
  const std::string unsigned_text = lower.substr(lower.find_first_not_of("+-") == 1 ? 1 : 0);
  const bool is_word =
      unsigned_text == "inf" || unsigned_text == "infinity" || unsigned_text == "nan";
  if (!is_word && lower.find_first_not_of("0123456789+-.e") != std::string::npos) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(lower.c_str(), &end);
  if (end != lower.c_str() + lower.size()) return std::nullopt;
  return value;
}

std::optional<Value> truncate(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  const double whole = std::trunc(value);
  if (std::abs(whole) < 9.2e18) return Value(static_cast<std::int64_t>(whole));
  const std::string digits = fmt::format("{:.0f}", std::abs(whole));
  return integer_from_digits(digits, whole < 0);
}

[[noreturn]] void fail_if_undefined(Interpreter& interpreter, const Undefined& undefined) {
  interpreter.fail(undefined.reason == nullptr ? "an undefined value is used" : *undefined.reason);
}

}  // namespace

Value integer_from_digits(std::string_view digits, bool is_negative) {
  const std::size_t first = digits.find_first_not_of('0');
  digits.remove_prefix(first == std::string_view::npos ? digits.size() - 1 : first);
  std::string text = (is_negative ? "-" : "") + std::string(digits);
  std::int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc()) {
    return value;
  }
  return BigInt{std::make_shared<const std::string>(std::move(text))};
}

Value convert_to_int(Interpreter& interpreter, const Value& value, const Value& if_not,
                     std::int64_t base) {
  if (const std::optional<std::int64_t> i = as_integer(value)) return *i;
  if (value.is<BigInt>()) return value;
  if (const double* d = value.get_if<double>()) return truncate(*d).value_or(if_not);
  if (const Text* text = value.text()) {
    if (std::optional<Value> parsed = parse_int(text->bytes(), base)) return *std::move(parsed);
    const std::optional<double> as_double = parse_float(text->bytes());
    if (as_double) return truncate(*as_double).value_or(if_not);
  }
  if (const Undefined* undefined = value.get_if<Undefined>()) {
    fail_if_undefined(interpreter, *undefined);
  }
  return if_not;
}

Value convert_to_float(Interpreter& interpreter, const Value& value, const Value& if_not) {
  if (const std::optional<double> d = as_float(value)) return *d;
  if (const Text* text = value.text()) {
    if (const std::optional<double> parsed = parse_float(text->bytes())) return *parsed;
  }
  if (const Undefined* undefined = value.get_if<Undefined>()) {
    fail_if_undefined(interpreter, *undefined);
  }
  return if_not;
}

Value round_number(Interpreter& interpreter, const Value& value, std::int64_t precision,
                   std::string_view method) {
  if (method != "common" && method != "ceil" && method != "floor") {
    interpreter.fail("round: method must be common, ceil or floor");
  }
  if (!is_number(value)) interpreter.fail(fmt::format("round of a {}", type_name(value)));
  const double number = *as_float(value);
  if (method == "common") {
    if (!value.is<double>() && precision >= 0) {
      const std::optional<std::int64_t> i = as_integer(value);
      return i ? Value(*i) : value;
    }
    if (!std::isfinite(number) || precision > 300) return number;
    if (precision < 0) {
      const double scale =
          std::pow(10.0, static_cast<double>(std::max<std::int64_t>(precision, -400)));
      const double rounded = std::nearbyint(number * scale) / scale;
      if (value.is<double>()) return std::isfinite(rounded) ? rounded : 0.0;
      return truncate(std::isfinite(rounded) ? rounded : 0.0).value_or(Value(0));
    }
    // Decimal digits of the exact value, rounded half to even by the C library.
    return std::strtod(fmt::format("{:.{}f}", number, precision).c_str(), nullptr);
  }
  if (precision > 300 || precision < -300) return number;
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = number * scale;
  if (!std::isfinite(scaled)) interpreter.fail("round: beyond the range of a float");
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

}  // namespace winnow::jinja
