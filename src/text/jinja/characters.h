// Python's view of text: positions in characters, white space, case, escapes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace winnow::jinja {

/// str.isspace of one character: White_Space and the four information separators.
bool is_python_space(std::uint32_t code_point);

/// `text` without white space at its ends.
std::string_view strip_space(std::string_view text, bool left, bool right);

/// Value of a hexadecimal digit, -1 for another character.
int hex_digit(char c);

/// Python's "unicode_escape" over a string literal's inside; false for a malformed escape.
bool unescape_python(std::string_view raw, std::string& out);

/// Byte position of every character, and the size at the end.
std::vector<std::size_t> character_positions(std::string_view text);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
/// First character in title case, the rest in lower case.
std::string to_capitalized(std::string_view text);
/// str.title: a letter after a non-letter in title case, other letters in lower case.
std::string to_title(std::string_view text);
std::string swap_case(std::string_view text);

bool is_cased(std::uint32_t code_point);
bool is_upper_case(std::uint32_t code_point);
bool is_lower_case(std::uint32_t code_point);

}  // namespace winnow::jinja
