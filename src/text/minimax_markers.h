// Markers of the MiniMax-M3 wire format, matched as text: a model may spell them out of ordinary
// tokens. Source: spec/frontend.md sections 3 and 4.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace winnow {

inline constexpr std::string_view kThinkOpener = "<mm:think>";
inline constexpr std::string_view kThinkCloser = "</mm:think>";
inline constexpr std::string_view kToolNamespace = "]<]minimax[>[";  // before every tag of a call
inline constexpr std::string_view kToolBlockOpener = "<tool_call>";
inline constexpr std::string_view kToolBlockCloser = "</tool_call>";
inline constexpr std::string_view kToolBlock = "]<]minimax[>[<tool_call>";

/// Whether a vocabulary entry is one of the markers.
inline bool is_format_marker(std::string_view token) {
  return token == kThinkOpener || token == kThinkCloser || token == kToolNamespace ||
         token == kToolBlockOpener || token == kToolBlockCloser;
}

/// Length of the longest suffix of `text` that is a proper prefix of `marker`.
inline std::size_t held_suffix(std::string_view text, std::string_view marker) {
  for (std::size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n) {
    if (text.ends_with(marker.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace winnow
