#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace winnow {

namespace {

// Characters for which `accepts` holds, one match each.
template <typename Predicate>
void match_characters(std::string_view text, Predicate accepts, std::vector<SplitMatch>& out) {
  std::size_t previous = 0;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t num_bytes = 0;
    const std::uint32_t c = decode_utf8(text, i, &num_bytes);
    if (accepts(c)) {
      if (previous < i) out.push_back({previous, i, false});
      out.push_back({i, i + num_bytes, true});
      previous = i + num_bytes;
    }
    i += num_bytes;
  }
  if (previous < text.size()) out.push_back({previous, text.size(), false});
}

// Runs of word characters and runs of characters that are neither word nor white space.
void match_words(std::string_view text, std::vector<SplitMatch>& out) {
  enum class Kind { kSpace, kWord, kSymbol };
  const auto kind_at = [&](std::size_t i, std::size_t* num_bytes) {
    const std::uint32_t c = decode_utf8(text, i, num_bytes);
    if (is_word(c)) return Kind::kWord;
    return is_white_space(c) ? Kind::kSpace : Kind::kSymbol;
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t num_bytes = 0;
    const std::size_t begin = i;
    const Kind kind = kind_at(i, &num_bytes);
    do {
      i += num_bytes;
    } while (i < text.size() && kind_at(i, &num_bytes) == kind);
    out.push_back({begin, i, kind != Kind::kSpace});
  }
}

void match_literal(std::string_view text, std::string_view literal, std::vector<SplitMatch>& out) {
  std::size_t previous = 0;
  while (true) {
    const std::size_t found = text.find(literal, previous);
    if (found == std::string_view::npos) break;
    if (previous < found) out.push_back({previous, found, false});
    previous = found + literal.size();
    out.push_back({found, previous, true});
  }
  if (previous < text.size()) out.push_back({previous, text.size(), false});
}

// The library's folds, which decide what happens at two matches in a row.
void apply_behavior(SplitBehavior behavior, std::vector<SplitMatch>& matches) {
  if (behavior == SplitBehavior::kIsolated) return;
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(matches, [](const SplitMatch& match) { return match.is_match; });
    return;
  }
  const bool is_reversed = behavior == SplitBehavior::kMergedWithNext;
  if (is_reversed) std::reverse(matches.begin(), matches.end());
  std::vector<SplitMatch> merged;
  bool previous_is_match = false;
  for (const SplitMatch& match : matches) {
    const bool joins = behavior == SplitBehavior::kContiguous
                           ? match.is_match == previous_is_match
                           : match.is_match && !previous_is_match;
    if (joins && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, match.begin);
      merged.back().end = std::max(merged.back().end, match.end);
    } else {
      merged.push_back(match);
    }
    previous_is_match = match.is_match;
  }
  if (is_reversed) std::reverse(merged.begin(), merged.end());
  matches = std::move(merged);
}

// A space before each word that does not begin with one; it takes the alignment of the character
// it stands before.
void add_prefix_spaces(AlignedText& text, std::vector<WordRange>& words) {
  const std::string_view view = text.view();
  std::string out;
  std::vector<AlignedText::Range> alignment;
  std::vector<WordRange> moved;
  moved.reserve(words.size());
  out.reserve(view.size() + words.size());
  alignment.reserve(view.size() + words.size());
  for (const WordRange& word : words) {
    const auto begin = static_cast<std::uint32_t>(out.size());
    if (view[word.begin] != ' ') {
      out.push_back(' ');
      alignment.push_back(text.aligned(word.begin));
    }
    out.append(view.substr(word.begin, word.end - word.begin));
    for (std::uint32_t i = word.begin; i < word.end; ++i) alignment.push_back(text.aligned(i));
    moved.push_back({begin, static_cast<std::uint32_t>(out.size())});
  }
  text.assign(std::move(out), std::move(alignment));
  words = std::move(moved);
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps) {
  for (PreTokenizerStep& description : steps) {
    Step step{std::move(description), std::nullopt, std::nullopt};
    if (step.description.kind == PreTokenizerStep::Kind::kExpression) {
      step.scanner = SplitScanner::for_expression(step.description.pattern);
      if (!step.scanner) step.regex.emplace(step.description.pattern);
    }
    steps_.push_back(std::move(step));
  }
}

void PreTokenizer::find_matches(const Step& step, std::string_view text,
                                std::vector<SplitMatch>& out) {
  switch (step.description.kind) {
    case PreTokenizerStep::Kind::kExpression:
      if (step.scanner) {
        for (std::size_t i = 0; i < text.size();) {
          const std::size_t end = step.scanner->match_end(text, i);
          out.push_back({i, end, true});
          i = end;
        }
      } else {
        step.regex->split(text, out);
      }
      break;
    case PreTokenizerStep::Kind::kLiteral:
      match_literal(text, step.description.pattern, out);
      break;
    case PreTokenizerStep::Kind::kDigits:
      match_characters(text, is_numeric, out);
      break;
    case PreTokenizerStep::Kind::kPunctuation:
      match_characters(text, is_punctuation, out);
      break;
    case PreTokenizerStep::Kind::kWhiteSpace:
      match_characters(
          text, [](std::uint32_t c) { return is_white_space(c); }, out);
      break;
    case PreTokenizerStep::Kind::kWords:
      match_words(text, out);
      break;
    case PreTokenizerStep::Kind::kPrefixSpace:
      break;
  }
}

bool PreTokenizer::can_cut_pieces() const {
  if (steps_.empty()) return false;
  const Step& first = steps_.front();
  return first.scanner && !first.description.is_inverted &&
         first.description.behavior == SplitBehavior::kIsolated;
}

void PreTokenizer::split(AlignedText& text, std::vector<WordRange>& words) const {
  words.clear();
  if (text.view().empty()) return;
  words.push_back({0, static_cast<std::uint32_t>(text.view().size())});
  std::vector<SplitMatch> matches;
  std::vector<WordRange> next;
  for (const Step& step : steps_) {
    if (step.description.kind == PreTokenizerStep::Kind::kPrefixSpace) {
      add_prefix_spaces(text, words);
      continue;
    }
    next.clear();
    const std::string_view view = text.view();
    for (const WordRange& word : words) {
      matches.clear();
      find_matches(step, view.substr(word.begin, word.end - word.begin), matches);
      if (step.description.is_inverted) {
        for (SplitMatch& match : matches) match.is_match = !match.is_match;
      }
      apply_behavior(step.description.behavior, matches);
      for (const SplitMatch& match : matches) {
        if (match.begin < match.end) {
          next.push_back({word.begin + static_cast<std::uint32_t>(match.begin),
                          word.begin + static_cast<std::uint32_t>(match.end)});
        }
      }
    }
    words.swap(next);
  }
}

}  // namespace winnow
