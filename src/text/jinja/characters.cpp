#include "text/jinja/characters.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "text/unicode.h"

namespace winnow::jinja {

namespace {

icu::UnicodeString to_icu(std::string_view text) {
  return icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
}

std::string from_icu(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

}  // namespace

bool is_python_space(std::uint32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Step step = step_utf8(text, 0);
    if (!is_python_space(step.code_point)) break;
    text.remove_prefix(step.num_bytes);
  }
  while (right && !text.empty()) {
    std::size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_python_space(step_utf8(text, begin).code_point)) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool unescape_python(std::string_view raw, std::string& out) {
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      out += raw[i];
      continue;
    }
    if (++i == raw.size()) return false;
    const char c = raw[i];
    const auto hex = [&](std::size_t digits) {
      std::uint32_t value = 0;
      for (std::size_t k = 1; k <= digits; ++k) {
        const int digit = i + k < raw.size() ? hex_digit(raw[i + k]) : -1;
        if (digit < 0) return false;
        value = value * 16 + static_cast<std::uint32_t>(digit);
      }
      if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return false;
      append_utf8(value, out);
      i += digits;
      return true;
    };
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const std::size_t simple = kLetters.find(c);
    if (simple != std::string_view::npos) {
      out += kMeanings[simple];
    } else if (c == '\n') {
      continue;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      if (!hex(c == 'x' ? 2 : c == 'u' ? 4 : 8)) return false;
    } else if (c >= '0' && c <= '7') {
      std::uint32_t value = 0;
      std::size_t end = i;
      while (end < raw.size() && end < i + 3 && raw[end] >= '0' && raw[end] <= '7') {
        value = value * 8 + static_cast<std::uint32_t>(raw[end++] - '0');
      }
      append_utf8(value, out);
      i = end - 1;
    } else if (c == 'N') {
      return false;
    } else {
      out += '\\';
      out += c;
    }
  }
  return true;
}

std::vector<std::size_t> character_positions(std::string_view text) {
  std::vector<std::size_t> positions;
  positions.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) positions.push_back(i);
  }
  positions.push_back(text.size());
  return positions;
}

std::string to_upper(std::string_view text) {
  return from_icu(to_icu(text).toUpper(icu::Locale::getRoot()));
}

std::string to_lower(std::string_view text) {
  return from_icu(to_icu(text).toLower(icu::Locale::getRoot()));
}

std::string to_capitalized(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t first = step_utf8(text, 0).num_bytes;
  return to_title(text.substr(0, first)) + to_lower(text.substr(first));
}

std::string to_title(std::string_view text) {
  std::string out;
  bool follows_cased = false;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 0;
    const std::uint32_t c = decode_utf8(text, i, &length);
    if (follows_cased) {
      append_utf8(static_cast<std::uint32_t>(u_tolower(static_cast<UChar32>(c))), out);
    } else {
      icu::UnicodeString one(static_cast<UChar32>(c));
      out += from_icu(one.toTitle(nullptr, icu::Locale::getRoot(),
                                  U_TITLECASE_NO_LOWERCASE | U_TITLECASE_NO_BREAK_ADJUSTMENT));
    }
    follows_cased = is_cased(c);
    i += length;
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 0;
    const std::uint32_t c = decode_utf8(text, i, &length);
    const std::string_view one = text.substr(i, length);
    out += is_upper_case(c) ? to_lower(one) : is_lower_case(c) ? to_upper(one) : std::string(one);
    i += length;
  }
  return out;
}

bool is_cased(std::uint32_t code_point) {
  return u_hasBinaryProperty(static_cast<UChar32>(code_point), UCHAR_CASED) != 0;
}
bool is_upper_case(std::uint32_t code_point) {
  return u_isUUppercase(static_cast<UChar32>(code_point)) != 0;
}
bool is_lower_case(std::uint32_t code_point) {
  return u_isULowercase(static_cast<UChar32>(code_point)) != 0;
}

}  // namespace winnow::jinja
