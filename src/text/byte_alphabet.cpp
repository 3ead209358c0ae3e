#include "text/byte_alphabet.h"

#include <array>

#include "text/unicode.h"

namespace winnow {

namespace {

struct Alphabet {
  std::array<std::uint16_t, 256> code_point_of{};
  std::array<std::int16_t, 0x144> byte_of{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of.fill(-1);
  std::uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const std::uint16_t code_point = is_itself ? static_cast<std::uint16_t>(byte) : next++;
    alphabet.code_point_of[static_cast<std::size_t>(byte)] = code_point;
    alphabet.byte_of[code_point] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const Utf8Step step = step_utf8(token, i);
    if (step.code_point >= kAlphabet.byte_of.size() || kAlphabet.byte_of[step.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[step.code_point]));
    i += step.num_bytes;
  }
  return bytes;
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    append_utf8(kAlphabet.code_point_of[static_cast<unsigned char>(c)], out);
  }
  return out;
}

}  // namespace winnow
