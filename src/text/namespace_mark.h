// Where a tag of a tool call begins: the namespace marker, and the '<' after it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "text/minimax_markers.h"

namespace winnow {

/// Blanks between the namespace marker and its tag are let pass, so many at most.
inline constexpr std::size_t kMaxBlanksBeforeTag = 16;

struct NamespaceMark {
  std::size_t begin = 0;  // of the marker
  std::size_t tag = 0;    // of the '<' after it, or the end of the text
};

/// The first one in `text` from `from` on.
inline std::optional<NamespaceMark> find_namespace_mark(std::string_view text, std::size_t from) {
  const std::size_t begin = text.find(kToolNamespace, from);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::size_t after = begin + kToolNamespace.size();
  const std::size_t tag = std::min(text.find_first_not_of(" \t\r\n", after), text.size());
  return NamespaceMark{begin, tag - after <= kMaxBlanksBeforeTag ? tag : after};
}

}  // namespace winnow
