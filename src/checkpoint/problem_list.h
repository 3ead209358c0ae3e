// Collects everything that is wrong with a checkpoint, so that one run reports all of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace winnow {

class ProblemList {
 public:
  /// `text` names the thing, its value, and what was expected.
  void add(std::string text) { problems_.push_back(std::move(text)); }
  bool empty() const { return problems_.empty(); }
  std::span<const std::string> all() const { return problems_; }

  /// Nothing when empty; else Error{kInvalidCheckpoint}: the problem alone when it is one, or
  /// "<subject>: N problems" with the first ten on lines of their own; `full_list` says where all
  /// are.
  void throw_if_any(std::string_view subject,
                    std::string_view full_list = ": winnow inspect lists all") const;

 private:
  std::vector<std::string> problems_;
};

/// `text` from a file as it may be shown: control characters become '?', and what is longer than
/// 200 bytes is cut.
std::string printable(std::string_view text);

}  // namespace winnow
