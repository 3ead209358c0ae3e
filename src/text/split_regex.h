// Split expressions of tokenizer.json run by PCRE2, with the meaning the public library's engine
// (Oniguruma) gives them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

/// A stretch of text; a sequence of them covers the text without gaps.
struct SplitMatch {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

/// Immutable; any number of threads.
class SplitRegex {
 public:
  /// Throws Error (kInvalidCheckpoint) with PCRE2's reason when the expression does not compile
  /// or uses a construct whose meaning differs between the engines.
  explicit SplitRegex(std::string_view expression);
  ~SplitRegex();
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;

  /// Appends the matches in `text` (well-formed UTF-8) and the stretches between them, in order.
  /// A search that exceeds its step budget gives up on at most 64 KiB of text, which then counts
  /// as one stretch without a match: hostile text costs bounded time instead of hanging.
  void split(std::string_view text, std::vector<SplitMatch>& out) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace winnow
