// A regular expression over module names, as adapter configs write them: matched at the end of a
// name, from its start or from behind a dot on (PEFT's rank_pattern and alpha_pattern).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace winnow {

/// One thread at a time. The expression is a stranger's: its length and the steps of a match are
/// bounded.
class NamePattern {
 public:
  /// Throws Error{kInvalidCheckpoint} that names the expression.
  explicit NamePattern(const std::string& expression);
  ~NamePattern();
  NamePattern(NamePattern&&) noexcept;
  NamePattern& operator=(NamePattern&&) noexcept;

  /// Throws Error{kInvalidCheckpoint} when the match takes more steps than are allowed.
  bool matches(std::string_view name) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string expression_;
};

}  // namespace winnow
