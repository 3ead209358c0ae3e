// The scanners against PCRE2 running the same expressions.
#include "text/split_scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/split_regex.h"
#include "text/unicode.h"

namespace winnow {
namespace {

std::vector<std::string> pieces_by_scanner(const SplitScanner& scanner, std::string_view text) {
  std::vector<std::string> pieces;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = scanner.match_end(text, i);
    pieces.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return pieces;
}

std::vector<std::string> pieces_by_regex(const SplitRegex& regex, std::string_view text) {
  std::vector<SplitMatch> matches;
  regex.split(text, matches);
  std::vector<std::string> pieces;
  for (const SplitMatch& match : matches) {
    EXPECT_TRUE(match.is_match);
    pieces.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return pieces;
}

class KnownExpression : public testing::TestWithParam<std::size_t> {};

TEST_P(KnownExpression, SplitsRandomTextAsPcre2Does) {
  const std::string_view expression = SplitScanner::expression(GetParam());
  const SplitScanner scanner = *SplitScanner::for_expression(expression);
  const SplitRegex regex(expression);
  // A few characters of each class, and those the expressions name.
  const std::vector<std::string> alphabet = {
      "a",      "s",      "t",      "r",      "e",      "v", "m", "l", "d",  "S",    "L",
      "E",      "B",      "1",      "٣",      "Ⅷ",      " ", " ", " ", "\t", "\n",   "\r",
      "\u00a0", "\u2028", "\u180e", "'",      "'",      "/", "!", "-", "ª",  "ʰ",    "中",
      "ǅ",      "ſ",      "é",      "\u0301", "\u0903", "ß", "Ж", "ж", "😀",  "\x01", "\u200d"};
  std::mt19937 random(1);
  for (int round = 0; round < 60'000; ++round) {
    std::string text;
    const std::size_t length = 1 + random() % 14;
    for (std::size_t i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
    ASSERT_EQ(pieces_by_scanner(scanner, text), pieces_by_regex(regex, text)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, KnownExpression,
                         testing::Range(std::size_t{0}, SplitScanner::num_expressions()));

TEST(SplitScanner, LeavesOtherExpressionsToTheEngine) {
  EXPECT_FALSE(SplitScanner::for_expression(R"(\p{L}+)").has_value());
}

TEST(SplitRegex, RefusesWhatTheEnginesReadDifferently) {
  for (const char* expression : {"[a&&b]", "a{1,3}+", "\\h", "[[a]b]", "(", "[]a]", "\\"}) {
    EXPECT_ANY_THROW(SplitRegex{expression}) << expression;
  }
}

TEST(SplitRegex, GivesUpOnBoundedPiecesOfHostileText) {
  const SplitRegex regex(R"((?:a|aa|aaa)+b)");
  const std::string text(200'000, 'a');
  std::vector<SplitMatch> matches;
  regex.split(text, matches);
  std::size_t covered = 0;
  for (const SplitMatch& match : matches) {
    EXPECT_EQ(match.begin, covered);
    covered = match.end;
  }
  EXPECT_EQ(covered, text.size());
}

}  // namespace
}  // namespace winnow
