#include "text/unicode.h"

#include <unicode/uchar.h>

#include <cstring>
#include <memory>

namespace winnow {

namespace {

constexpr std::uint32_t kNumCodePoints = 0x110000;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::size_t skip_ascii(std::string_view text, std::size_t position) {
  while (position + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + position, 8);
    if ((word & 0x8080808080808080U) != 0) break;
    position += 8;
  }
  while (position < text.size() && static_cast<unsigned char>(text[position]) < 0x80) ++position;
  return position;
}

std::unique_ptr<CharClass[]> build_char_classes() {
  auto table = std::make_unique<CharClass[]>(kNumCodePoints);
  u_enumCharTypes(
      [](const void* context, UChar32 start, UChar32 limit, UCharCategory category) -> UBool {
        auto* classes = static_cast<CharClass*>(const_cast<void*>(context));
        CharClass value = CharClass::kOther;
        switch (category) {
          case U_UPPERCASE_LETTER:
          case U_TITLECASE_LETTER:
            value = CharClass::kUpper;
            break;
          case U_LOWERCASE_LETTER:
            value = CharClass::kLower;
            break;
          case U_MODIFIER_LETTER:
          case U_OTHER_LETTER:
            value = CharClass::kBothCases;
            break;
          case U_NON_SPACING_MARK:
          case U_ENCLOSING_MARK:
          case U_COMBINING_SPACING_MARK:
            value = CharClass::kMark;
            break;
          case U_DECIMAL_DIGIT_NUMBER:
          case U_LETTER_NUMBER:
          case U_OTHER_NUMBER:
            value = CharClass::kNumber;
            break;
          default:
            break;
        }
        for (UChar32 c = start; c < limit; ++c) classes[c] = value;
        return true;
      },
      table.get());
  for (std::uint32_t c = 0; c <= 0x3000; ++c) {
    if (is_white_space(c)) table[c] = CharClass::kWhiteSpace;
  }
  table['\r'] = CharClass::kNewline;
  table['\n'] = CharClass::kNewline;
  return table;
}

}  // namespace

Utf8Step step_utf8(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[position + i]); };
  const std::size_t available = text.size() - position;
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  std::size_t length = 0;
  std::uint32_t code_point = 0;
  unsigned char low = 0x80;  // accepted range of the second byte
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code_point = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code_point = lead & 0x0FU;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code_point = lead & 0x07U;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // nothing past U+10FFFF
  } else {
    return {0xFFFD, 1, false, false};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == available) return {0xFFFD, static_cast<std::uint8_t>(i), false, true};
    const unsigned char next = byte(i);
    if (next < low || next > high) return {0xFFFD, static_cast<std::uint8_t>(i), false, false};
    code_point = (code_point << 6) | (next & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, static_cast<std::uint8_t>(length), true, false};
}

std::size_t well_formed_prefix(std::string_view text) {
  std::size_t position = 0;
  while (true) {
    position = skip_ascii(text, position);
    if (position == text.size()) return position;
    const Utf8Step step = step_utf8(text, position);
    if (!step.is_well_formed) return position;
    position += step.num_bytes;
  }
}

std::uint32_t decode_utf8(std::string_view text, std::size_t position, std::size_t* num_bytes) {
  const Utf8Step step = step_utf8(text, position);
  *num_bytes = step.num_bytes;
  return step.code_point;
}

void append_utf8(std::uint32_t code_point, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::string replace_ill_formed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t good = well_formed_prefix(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) break;
    text.remove_prefix(step_utf8(text, 0).num_bytes);
    out.append(kReplacementCharacter);
  }
  return out;
}

std::size_t count_characters(std::string_view well_formed) {
  std::size_t count = 0;
  for (const char c : well_formed) count += is_continuation(c) ? 0 : 1;
  return count;
}

const CharClass* char_class_table() {
  static const std::unique_ptr<CharClass[]> table = build_char_classes();
  return table.get();
}

bool is_white_space(std::uint32_t code_point) {
  return u_isUWhiteSpace(static_cast<UChar32>(code_point)) != 0;
}

bool is_numeric(std::uint32_t code_point) {
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & U_GC_N_MASK) != 0;
}

bool is_punctuation(std::uint32_t code_point) {
  if (code_point < 0x80)
    return code_point > 0x20 && code_point < 0x7F &&
           std::isalnum(static_cast<int>(code_point)) == 0;
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & U_GC_P_MASK) != 0;
}

bool is_word(std::uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  constexpr std::uint32_t kMask = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_isUAlphabetic(c) != 0 || (U_GET_GC_MASK(c) & kMask) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) != 0;
}

}  // namespace winnow
