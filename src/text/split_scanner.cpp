#include "text/split_scanner.h"

#include <array>
#include <cstdint>

#include "text/unicode.h"

namespace winnow {

namespace {

enum class Contractions { kFirst, kFirstAnyCase, kAfterWord };
enum class Words { kSpaceThenLetters, kAnyThenLetters, kCased };
enum class Tail { kNone, kNewlines, kNewlinesAndSlashes };

// What tells the known expressions apart; their other alternatives are the same.
struct Style {
  Contractions contractions;
  Words words;
  int max_digits;  // of \p{N}{1,n}; 0: " ?\p{N}+"
  Tail tail;       // after a run of punctuation
  bool has_newline_runs;
};

constexpr Style kGpt2{Contractions::kFirst, Words::kSpaceThenLetters, 0, Tail::kNone, false};
constexpr Style kQwen2{Contractions::kFirstAnyCase, Words::kAnyThenLetters, 1, Tail::kNewlines,
                       true};
constexpr Style kLlama3{Contractions::kFirstAnyCase, Words::kAnyThenLetters, 3, Tail::kNewlines,
                        true};
constexpr Style kO200k{Contractions::kAfterWord, Words::kCased, 3, Tail::kNewlinesAndSlashes, true};
constexpr Style kMiniMaxM3{Contractions::kAfterWord, Words::kCased, 3, Tail::kNewlines, true};

struct Character {
  CharClass char_class;
  std::uint32_t num_bytes;
};

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text), classes_(char_class_table()) {}

  std::size_t size() const { return text_.size(); }
  char byte(std::size_t i) const { return text_[i]; }

  // Well-formed text, i < size().
  Character at(std::size_t i) const {
    const auto b = [&](std::size_t k) {
      return static_cast<std::uint32_t>(static_cast<unsigned char>(text_[i + k]));
    };
    const std::uint32_t lead = b(0);
    if (lead < 0x80) return {classes_[lead], 1};
    if (lead < 0xE0) return {classes_[((lead & 0x1F) << 6) | (b(1) & 0x3F)], 2};
    if (lead < 0xF0) {
      return {classes_[((lead & 0x0F) << 12) | ((b(1) & 0x3F) << 6) | (b(2) & 0x3F)], 3};
    }
    return {classes_[((lead & 0x07) << 18) | ((b(1) & 0x3F) << 12) | ((b(2) & 0x3F) << 6) |
                     (b(3) & 0x3F)],
            4};
  }

  template <typename Predicate>
  std::size_t skip_while(std::size_t i, Predicate accepts) const {
    while (i < size()) {
      const Character c = at(i);
      if (!accepts(c.char_class)) break;
      i += c.num_bytes;
    }
    return i;
  }

 private:
  std::string_view text_;
  const CharClass* classes_;
};

bool is_upper_like(CharClass c) {
  return c == CharClass::kUpper || c == CharClass::kBothCases || c == CharClass::kMark;
}
bool is_lower_like(CharClass c) {
  return c == CharClass::kLower || c == CharClass::kBothCases || c == CharClass::kMark;
}
bool is_symbol(CharClass c) { return c == CharClass::kOther || c == CharClass::kMark; }

// Length of 's 't 're 've 'm 'll 'd at i, 0 if none. Without case, U+017F (long s) is an s too.
std::size_t contraction(const Cursor& text, std::size_t i, bool any_case) {
  if (i + 1 >= text.size() || text.byte(i) != '\'') return 0;
  const auto letter = [&](std::size_t k) -> char {
    if (k >= text.size()) return '\0';
    const char c = text.byte(k);
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
  };
  switch (letter(i + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(i + 2) == 'e' ? 3 : 0;
    case 'l':
      return letter(i + 2) == 'l' ? 3 : 0;
    case '\xC5':
      return any_case && letter(i + 2) == '\xBF' ? 3 : 0;
    default:
      return 0;
  }
}

struct CasedWord {
  std::size_t end;
  bool has_lower_part;  // by the first alternative rather than the second
};

// [upper-like]*[lower-like]+ or, failing that, [upper-like]+[lower-like]* from i; empty if neither.
// Marks and caseless letters are in both classes, so the first star may have to give some back:
// the last of them in the run becomes the whole of the lower part.
CasedWord cased_word(const Cursor& text, std::size_t i) {
  std::size_t end = i;
  std::size_t shared_end = i;  // after the last character of the run that is in both classes
  while (end < text.size()) {
    const Character c = text.at(end);
    if (!is_upper_like(c.char_class)) break;
    end += c.num_bytes;
    if (c.char_class != CharClass::kUpper) shared_end = end;
  }
  const std::size_t lower_end = text.skip_while(end, is_lower_like);
  if (lower_end > end) return {lower_end, true};
  return shared_end > i ? CasedWord{shared_end, true} : CasedWord{end, false};
}

template <Style S>
std::size_t word_end(const Cursor& text, std::size_t i, Character first) {
  if constexpr (S.words == Words::kSpaceThenLetters) {
    const std::size_t start = text.byte(i) == ' ' ? i + 1 : i;
    const std::size_t end = text.skip_while(start, [](CharClass c) { return is_letter(c); });
    return end > start ? end : i;
  } else {
    const bool may_lead = !is_letter(first.char_class) && first.char_class != CharClass::kNumber &&
                          first.char_class != CharClass::kNewline;
    const std::size_t start = may_lead ? i + first.num_bytes : i;
    if constexpr (S.words == Words::kAnyThenLetters) {
      const std::size_t end = text.skip_while(start, [](CharClass c) { return is_letter(c); });
      return end > start ? end : i;
    } else {
      const CasedWord word = cased_word(text, start);
      std::size_t end = word.end;
      if (first.char_class == CharClass::kMark && !word.has_lower_part) {
        // The first alternative still matches with the mark as the word, not as what leads it.
        end = start;
      } else if (end == start) {
        return i;
      }
      return end + contraction(text, end, true);
    }
  }
}

template <Style S>
std::size_t number_end(const Cursor& text, std::size_t i) {
  const auto is_number = [](CharClass c) { return c == CharClass::kNumber; };
  if constexpr (S.max_digits == 0) {
    const std::size_t start = text.byte(i) == ' ' ? i + 1 : i;
    const std::size_t end = text.skip_while(start, is_number);
    return end > start ? end : i;
  } else {
    for (int count = 0; count < S.max_digits && i < text.size(); ++count) {
      const Character c = text.at(i);
      if (!is_number(c.char_class)) break;
      i += c.num_bytes;
    }
    return i;
  }
}

template <Style S>
std::size_t symbols_end(const Cursor& text, std::size_t i) {
  const std::size_t start = text.byte(i) == ' ' ? i + 1 : i;
  std::size_t end = text.skip_while(start, is_symbol);
  if (end == start) return i;
  if constexpr (S.tail != Tail::kNone) {
    while (end < text.size()) {
      const char c = text.byte(end);
      const bool is_slash = S.tail == Tail::kNewlinesAndSlashes && c == '/';
      if (c != '\r' && c != '\n' && !is_slash) break;
      ++end;
    }
  }
  return end;
}

// \s*[\r\n]+ where the style has it, then \s+(?!\S), then \s+.
template <Style S>
std::size_t white_space_end(const Cursor& text, std::size_t i) {
  std::size_t end = i;
  std::size_t last = i;         // start of the last character of the run
  std::size_t newline_end = i;  // after the last newline of the run
  while (end < text.size()) {
    const Character c = text.at(end);
    if (!is_white_space(c.char_class)) break;
    last = end;
    end += c.num_bytes;
    if (c.char_class == CharClass::kNewline) newline_end = end;
  }
  if (S.has_newline_runs && newline_end > i) return newline_end;
  if (end < text.size() && last > i) return last;
  return end;
}

template <Style S>
std::size_t match_end(std::string_view view, std::size_t i) {
  const Cursor text(view);
  const Character first = text.at(i);
  if constexpr (S.contractions != Contractions::kAfterWord) {
    const std::size_t length = contraction(text, i, S.contractions == Contractions::kFirstAnyCase);
    if (length > 0) return i + length;
  }
  std::size_t end = word_end<S>(text, i, first);
  if (end > i) return end;
  end = number_end<S>(text, i);
  if (end > i) return end;
  end = symbols_end<S>(text, i);
  if (end > i) return end;
  return white_space_end<S>(text, i);
}

struct Known {
  std::string_view expression;
  std::size_t (*match_end)(std::string_view, std::size_t);
};

constexpr std::array kKnown = {
    Known{kGpt2Split, match_end<kGpt2>},
    Known{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
          match_end<kQwen2>},
    Known{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
          match_end<kLlama3>},
    Known{R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
          R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
          R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
          match_end<kO200k>},
    Known{R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
          R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
          R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
          match_end<kMiniMaxM3>},
};

}  // namespace

std::optional<SplitScanner> SplitScanner::for_expression(std::string_view expression) {
  for (const Known& known : kKnown) {
    if (known.expression == expression) return SplitScanner(known.match_end);
  }
  return std::nullopt;
}

std::size_t SplitScanner::num_expressions() { return kKnown.size(); }

std::string_view SplitScanner::expression(std::size_t index) { return kKnown[index].expression; }

}  // namespace winnow
