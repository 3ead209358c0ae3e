#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "text/jinja/characters.h"
#include "text/unicode.h"

namespace winnow::jinja {

namespace {

using Kind = Token::Kind;

constexpr std::string_view kOperators[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') ||
         (c >= 'A' && c <= 'Z');
}

class Lexer {
 public:
  Lexer(std::string_view source, std::string_view name)
      : source_(normalize_newlines(source)), name_(name) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) {
      const std::size_t tag = find_tag();
      if (tag == std::string::npos) {
        add_data(std::string_view(source_).substr(position_));
        break;
      }
      take_tag(tag);
    }
    tokens_.push_back({Kind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  char at(std::size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  bool has(std::size_t i, std::string_view text) const {
    return source_.compare(i, text.size(), text) == 0;
  }

  void move_to(std::size_t position) {
    const auto from = source_.begin() + static_cast<std::ptrdiff_t>(position_);
    const auto to = source_.begin() + static_cast<std::ptrdiff_t>(position);
    line_ += static_cast<int>(std::count(from, to, '\n'));
    position_ = position;
  }

  std::size_t skip_space(std::size_t i) const {
    while (i < source_.size()) {
      const Utf8Step step = step_utf8(source_, i);
      if (!is_python_space(step.code_point)) break;
      i += step.num_bytes;
    }
    return i;
  }

  std::size_t find_tag() const {
    for (std::size_t i = source_.find('{', position_); i != std::string::npos;
         i = source_.find('{', i + 1)) {
      const char next = at(i + 1);
      if (next == '%' || next == '{' || next == '#') return i;
    }
    return std::string::npos;
  }

  void add_data(std::string_view data) {
    if (!data.empty()) tokens_.push_back({Kind::kData, std::string(data), line_});
  }

  // Text before a tag: "-" strips all white space, lstrip_blocks strips an indentation that has
  // the line to itself.
  void add_data_before(std::size_t tag, char sign, bool is_variable) {
    std::string_view data = std::string_view(source_).substr(position_, tag - position_);
    if (sign == '-') {
      data = strip_space(data, false, true);
    } else if (sign != '+' && !is_variable) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line_start > 0 || is_line_start_) &&
          strip_space(data.substr(line_start), true, false).empty()) {
        data = data.substr(0, line_start);
      }
    }
    add_data(data);
    move_to(tag);
  }

  void take_tag(std::size_t tag) {
    const char sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : '\0';
    const bool is_variable = at(tag + 1) == '{';
    add_data_before(tag, sign, is_variable);
    std::size_t inside = tag + (sign == '\0' ? 2 : 3);
    if (at(tag + 1) == '#') return take_comment(inside);
    if (!is_variable && take_raw(inside)) return;
    tokens_.push_back({is_variable ? Kind::kVariableBegin : Kind::kBlockBegin, "", line_});
    move_to(inside);
    take_expression(is_variable);
  }

  // After the closing delimiter at `i`: what trim_blocks or "-" take with it.
  void end_block(std::size_t i, char sign) {
    if (sign == '-') {
      i = skip_space(i);
    } else if (sign != '+' && at(i) == '\n') {
      ++i;
    }
    move_to(i);
    is_line_start_ = i > 0 && source_[i - 1] == '\n';
  }

  char sign_before(std::size_t end) const {
    const char c = end > 0 ? source_[end - 1] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  void take_comment(std::size_t inside) {
    const std::size_t end = source_.find("#}", inside);
    if (end == std::string::npos) fail_syntax(name_, line_, "missing end of comment tag");
    end_block(end + 2, end > inside ? sign_before(end) : '\0');
  }

  bool take_raw(std::size_t inside) {
    std::size_t i = skip_space(inside);
    if (!has(i, "raw")) return false;
    i = skip_space(i + 3);
    const bool strips = at(i) == '-';
    if (!has(strips ? i + 1 : i, "%}")) return false;
    move_to(strips ? skip_space(i + 3) : i + 2);
    is_line_start_ = position_ > 0 && source_[position_ - 1] == '\n';
    for (std::size_t tag = source_.find("{%", position_); tag != std::string::npos;
         tag = source_.find("{%", tag + 1)) {
      const char sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : '\0';
      i = skip_space(tag + (sign == '\0' ? 2 : 3));
      if (!has(i, "endraw")) continue;
      i = skip_space(i + 6);
      const char end_sign = at(i) == '-' || at(i) == '+' ? at(i) : '\0';
      if (end_sign != '\0') ++i;
      if (!has(i, "%}")) continue;
      add_data_before(tag, sign, false);
      end_block(i + 2, end_sign);
      return true;
    }
    fail_syntax(name_, line_, "missing end of raw directive");
  }

  bool take_end(bool is_variable) {
    const std::string_view close = is_variable ? "}}" : "%}";
    const char first = at(position_);
    char sign = '\0';
    if (has(position_, close)) {
      sign = '\0';
    } else if ((first == '-' || (first == '+' && !is_variable)) && has(position_ + 1, close)) {
      sign = first;
    } else {
      return false;
    }
    tokens_.push_back({is_variable ? Kind::kVariableEnd : Kind::kBlockEnd, "", line_});
    const std::size_t after = position_ + close.size() + (sign == '\0' ? 0 : 1);
    if (is_variable) {
      move_to(sign == '-' ? skip_space(after) : after);
      is_line_start_ = sign == '-' && source_[position_ - 1] == '\n';
    } else {
      end_block(after, sign);
    }
    return true;
  }

  void take_expression(bool is_variable) {
    std::string brackets;  // closers still expected
    while (true) {
      move_to(skip_space(position_));
      if (position_ >= source_.size()) fail_syntax(name_, line_, "unexpected end of template");
      if (brackets.empty() && take_end(is_variable)) return;
      if (take_number() || take_name() || take_string()) continue;
      take_operator(brackets);
    }
  }

  std::size_t digits_end(std::size_t i) const {
    if (!is_digit(at(i))) return i;
    while (is_digit(at(i)) || (at(i) == '_' && is_digit(at(i + 1)))) ++i;
    return i;
  }

  bool take_number() {
    if (!is_digit(at(position_))) return false;
    std::size_t end = digits_end(position_);
    bool is_float = false;
    const bool follows_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (!follows_dot) {
      std::size_t i = end;
      if (at(i) == '.' && is_digit(at(i + 1))) {
        i = digits_end(i + 1);
        is_float = true;
        end = i;
      }
      if (at(i) == 'e' || at(i) == 'E') {
        const std::size_t e = at(i + 1) == '+' || at(i + 1) == '-' ? i + 2 : i + 1;
        if (is_digit(at(e))) {
          end = digits_end(e);
          is_float = true;
        }
      }
    }
    std::string digits;
    if (!is_float && at(position_) == '0' && end == position_ + 1) {
      digits = take_based_number();
    }
    if (digits.empty()) {
      for (std::size_t i = position_; i < end; ++i) {
        if (source_[i] != '_') digits += source_[i];
      }
      if (!is_float && digits.size() > 1 && digits[0] == '0' &&
          digits.find_first_not_of('0') != std::string::npos) {
        fail_syntax(name_, line_, "a number may not begin with 0");
      }
      move_to(end);
    }
    tokens_.push_back({is_float ? Kind::kFloat : Kind::kInteger, digits, line_});
    return true;
  }

  // 0x, 0o, 0b: returned in decimal; empty if it is a plain 0.
  std::string take_based_number() {
    const char mark = static_cast<char>(at(position_ + 1) | 0x20);
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (base == 0) return {};
    std::size_t i = position_ + 2;
    std::int64_t value = 0;
    bool has_digit = false;
    for (;; ++i) {
      if (at(i) == '_') continue;
      const int digit = hex_digit(at(i));
      if (digit < 0 || digit >= base) break;
      if (__builtin_mul_overflow(value, base, &value) ||
          __builtin_add_overflow(value, digit, &value)) {
        fail_syntax(name_, line_, "a number beyond 64 bits");
      }
      has_digit = true;
    }
    if (!has_digit) return {};
    move_to(i);
    return fmt::format("{}", value);
  }

  bool take_name() {
    std::size_t end = position_;
    while (end < source_.size() && is_name_char(source_[end])) ++end;
    if (end == position_) return false;
    tokens_.push_back({Kind::kName, source_.substr(position_, end - position_), line_});
    move_to(end);
    return true;
  }

  bool take_string() {
    const char quote = at(position_);
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_syntax(name_, line_, "unterminated string");
    const std::string_view raw =
        std::string_view(source_).substr(position_ + 1, end - position_ - 1);
    std::string text;
    if (!unescape_python(raw, text)) fail_syntax(name_, line_, "invalid escape in a string");
    tokens_.push_back({Kind::kString, std::move(text), line_});
    move_to(end + 1);
    return true;
  }

  void take_operator(std::string& brackets) {
    for (const std::string_view op : kOperators) {
      if (!has(position_, op)) continue;
      if (op == "(" || op == "[" || op == "{") {
        brackets += op == "(" ? ')' : op == "[" ? ']' : '}';
      } else if (op == ")" || op == "]" || op == "}") {
        if (brackets.empty() || brackets.back() != op[0]) {
          fail_syntax(name_, line_, fmt::format("unexpected '{}'", op));
        }
        brackets.pop_back();
      }
      tokens_.push_back({Kind::kOperator, std::string(op), line_});
      move_to(position_ + op.size());
      return;
    }
    fail_syntax(name_, line_, fmt::format("unexpected character '{}'", at(position_)));
  }

  std::string source_;
  std::string_view name_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, std::string_view name) {
  return Lexer(source, name).run();
}

void fail_syntax(std::string_view name, int line, std::string_view message) {
  throw Error(ErrorCode::kInvalidCheckpoint, fmt::format("{}, line {}: {}", name, line, message));
}

}  // namespace winnow::jinja
