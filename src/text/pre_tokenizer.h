// Cuts text into the words that byte-pair merges never cross: the pre_tokenizer of tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/normalizer.h"
#include "text/split_regex.h"
#include "text/split_scanner.h"

namespace winnow {

/// What becomes of a stretch that the pattern matched. Names as in tokenizer.json.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

/// One step of the sequence, in the library's terms.
struct PreTokenizerStep {
  enum class Kind {
    kExpression,   // Split with a Regex; ByteLevel's own expression
    kLiteral,      // Split with a String
    kDigits,       // characters of category N
    kPunctuation,  // characters of category P and ASCII punctuation
    kWords,        // Whitespace: \w+|[^\w\s]+
    kWhiteSpace,   // WhitespaceSplit
    kPrefixSpace,  // ByteLevel's add_prefix_space
  };
  Kind kind;
  std::string pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool is_inverted = false;
};

struct WordRange {
  std::uint32_t begin;
  std::uint32_t end;
};

/// Immutable; any number of threads.
class PreTokenizer {
 public:
  /// Throws Error (kInvalidCheckpoint) for an expression that is not accepted.
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

  /// Fills `words` with non-empty ranges of text.view(), in order. A prefix space changes `text`.
  void split(AlignedText& text, std::vector<WordRange>& words) const;

  /// Whether the words of a text are those of its pieces, cut as text_pieces.h says. The first step
  /// decides: those after it see one word at a time.
  bool can_cut_pieces() const;

 private:
  struct Step {
    PreTokenizerStep description;
    std::optional<SplitScanner> scanner;  // known expressions
    std::optional<SplitRegex> regex;      // the others
  };

  static void find_matches(const Step& step, std::string_view text, std::vector<SplitMatch>& out);

  std::vector<Step> steps_;
};

}  // namespace winnow
