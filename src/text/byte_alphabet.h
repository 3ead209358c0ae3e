// The byte <-> character alphabet of byte-level BPE (GPT-2): printable Latin-1 bytes stand for
// themselves, the other 68 for U+0100 … U+0143 in order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace winnow {

/// Bytes spelled by `token`, or nothing when a character is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view token);

/// The spelling of `bytes` in the alphabet.
std::string spelling_of_bytes(std::string_view bytes);

}  // namespace winnow
