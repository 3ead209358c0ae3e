// Finds the first stop string in text that arrives in pieces. The result depends on the
// concatenated text only, never on where it was cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace winnow {

/// One per sequence; used by one thread at a time. An Aho-Corasick automaton over bytes: time is
/// linear in the text whatever the stop strings are.
class StopMatcher {
 public:
  /// Empty strings are refused (kInvalidArgument, param "stop"). With `include_stop` the matched
  /// string is part of the visible text.
  explicit StopMatcher(const std::vector<std::string>& stop_strings, bool include_stop = false);

  /// Takes the next piece; returns text that can no longer be part of a stop string. Holds back
  /// at most (longest stop string - 1) bytes. The match that ends first in the text wins, so that
  /// no further text is needed to decide; of those that end at the same byte, the longest. After
  /// a match nothing more is returned.
  std::string add(std::string_view piece);

  /// End of the text: returns what was held back, nothing after a match.
  std::string finish();

  /// Index into the constructor's list, once matched: the API's `stop_reason`.
  std::optional<std::size_t> matched_index() const { return matched_; }
  std::size_t num_held_bytes() const { return held_.size(); }

 private:
  struct Node {
    std::vector<std::pair<char, std::int32_t>> children;
    std::int32_t fallback = 0;  // longest proper suffix that is a prefix of some stop string
    std::int32_t depth = 0;     // bytes matched so far
    std::int32_t output = -1;   // index of the longest stop string that ends here
  };

  std::int32_t child(std::int32_t node, char byte) const;
  std::int32_t next(std::int32_t node, char byte) const;
  void link_nodes();

  std::vector<Node> nodes_;
  std::vector<std::size_t> lengths_;
  bool include_stop_;
  std::int32_t state_ = 0;
  std::string held_;  // the last nodes_[state_].depth bytes of the text
  std::optional<std::size_t> matched_;
};

}  // namespace winnow
