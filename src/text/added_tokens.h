// Added tokens: strings with ids of their own that are cut out of the text before the model's
// merges see it. Leftmost match wins, then the longest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool is_special = false;     // skipped by decoding on request
  bool is_normalized = false;  // matched in the normalised text instead of the original
  bool strips_left = false;    // takes the white space before it
  bool strips_right = false;
  bool is_single_word = false;  // not next to a word character
};

/// Half-open byte range; `token` indexes the list of added tokens, -1 for text between them.
struct TextSection {
  std::size_t begin;
  std::size_t end;
  int token;
};

struct ByteRange {
  std::size_t begin;
  std::size_t end;
};

/// Immutable; any number of threads.
class AddedTokenMatcher {
 public:
  /// `patterns[i]` is searched for tokens[i]; empty ones are never found. `tokens` must outlive
  /// the matcher.
  AddedTokenMatcher(const std::vector<AddedToken>& tokens,
                    const std::vector<std::string>& patterns);

  bool is_empty() const { return nodes_.size() == 1; }

  /// Appends sections that cover `text`, none of them empty. A match must lie within one of
  /// `allowed` (ascending, disjoint), while its surroundings are those of the whole text.
  void split(std::string_view text, std::span<const ByteRange> allowed,
             std::vector<TextSection>& out) const;

 private:
  struct Node {
    std::vector<std::pair<char, std::int32_t>> children;
    std::int32_t token = -1;
  };

  std::pair<std::size_t, int> longest_match(std::string_view text, std::size_t position,
                                            std::size_t limit) const;
  void add_match(std::string_view text, ByteRange match, int token, std::size_t& covered,
                 std::size_t& space_end, std::vector<TextSection>& out) const;

  const std::vector<AddedToken>* tokens_;
  std::vector<Node> nodes_;  // a trie over bytes
  std::int32_t first_[256];  // child of the root by byte, -1 for most
};

}  // namespace winnow
