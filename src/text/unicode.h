// UTF-8 and the few character classes that BPE pre-tokenisers ask for, from ICU's tables.
// Ill-formed input is replaced as Python's bytes.decode("utf-8", "replace") does: one U+FFFD per
// maximal subpart (Unicode 15, section 3.9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace winnow {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

/// Length of the longest well-formed UTF-8 prefix of `text`, in bytes.
std::size_t well_formed_prefix(std::string_view text);

/// What stands at text[position]: a whole character, or an ill-formed maximal subpart.
struct Utf8Step {
  std::uint32_t code_point;  // U+FFFD when ill-formed
  std::uint8_t num_bytes;    // >= 1
  bool is_well_formed;
  bool is_truncated;  // ill-formed only because the text ends: more bytes could complete it
};

/// `position` < text.size().
Utf8Step step_utf8(std::string_view text, std::size_t position);

/// Code point at `position` of well-formed text; *num_bytes gets its length.
std::uint32_t decode_utf8(std::string_view text, std::size_t position, std::size_t* num_bytes);

void append_utf8(std::uint32_t code_point, std::string& out);

/// `text` with every ill-formed maximal subpart replaced by U+FFFD.
std::string replace_ill_formed(std::string_view text);

std::size_t count_characters(std::string_view well_formed);

/// Classes that split expressions are made of; exactly one per code point, by ICU's data (version
/// 72: Unicode 15.0). Characters of later versions count as kOther.
enum class CharClass : std::uint8_t {
  kOther,
  kUpper,       // Lu, Lt
  kLower,       // Ll
  kBothCases,   // Lm, Lo: in both letter classes of the o200k expression
  kMark,        // Mn, Mc, Me
  kNumber,      // Nd, Nl, No
  kNewline,     // CR, LF
  kWhiteSpace,  // White_Space other than CR and LF
};

/// 0x110000 entries, built once.
const CharClass* char_class_table();

inline bool is_letter(CharClass c) {
  return c == CharClass::kUpper || c == CharClass::kLower || c == CharClass::kBothCases;
}
inline bool is_white_space(CharClass c) {
  return c == CharClass::kNewline || c == CharClass::kWhiteSpace;
}

bool is_white_space(std::uint32_t code_point);  // White_Space
bool is_numeric(std::uint32_t code_point);      // Nd, Nl, No
bool is_punctuation(std::uint32_t code_point);  // ASCII punctuation or category P
bool is_word(std::uint32_t code_point);         // \w of UTS 18

}  // namespace winnow
