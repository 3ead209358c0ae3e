// Hand-written scanners for the split expressions of known tokenizer families. Each does exactly
// what its regular expression does (tested against PCRE2 and the public library), several times
// faster and in time linear in the text.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace winnow {

/// The expression that ByteLevel applies when use_regex is true (GPT-2).
inline constexpr std::string_view kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class SplitScanner {
 public:
  /// A scanner for exactly this expression, or nothing.
  static std::optional<SplitScanner> for_expression(std::string_view expression);

  /// End of the match that starts at `position` < text.size(). `text` is well-formed UTF-8. All
  /// known expressions match at every position, with at least one character.
  std::size_t match_end(std::string_view text, std::size_t position) const {
    return match_end_(text, position);
  }

  /// The expressions known, for tests.
  static std::size_t num_expressions();
  static std::string_view expression(std::size_t index);

 private:
  using MatchEnd = std::size_t (*)(std::string_view text, std::size_t position);
  explicit SplitScanner(MatchEnd function) : match_end_(function) {}
  MatchEnd match_end_;
};

}  // namespace winnow
