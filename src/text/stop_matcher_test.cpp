#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace winnow {
namespace {

struct Result {
  std::string visible;
  std::optional<std::size_t> index;
  bool operator==(const Result&) const = default;
};

Result run(const std::vector<std::string>& stops, bool include, const std::string& text,
           const std::vector<std::size_t>& cuts) {
  StopMatcher matcher(stops, include);
  std::size_t longest = 1;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  Result result;
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    result.visible += matcher.add(text.substr(begin, cut - begin));
    EXPECT_LT(matcher.num_held_bytes(), longest);
    begin = cut;
  }
  result.visible += matcher.add(text.substr(begin));
  result.visible += matcher.finish();
  result.index = matcher.matched_index();
  return result;
}

// The rule in one line each: first end, then longest.
Result expected(const std::vector<std::string>& stops, bool include, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < stops.size(); ++i) {
      const bool ends_here = text.substr(0, end).ends_with(stops[i]);
      if (ends_here && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, include ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, GivesTheSameResultForEveryChunking) {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    const auto word = [&](std::size_t longest) {
      std::string out;
      for (std::size_t i = 1 + random() % longest; i > 0; --i) out += "ab]<é"[random() % 6];
      return out;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 1 + random() % 3; i > 0; --i) stops.push_back(word(5));
    const std::string text = word(30);
    std::vector<std::size_t> cuts;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (random() % 3 == 0) cuts.push_back(i);
    }
    const bool include = random() % 2 == 0;
    ASSERT_EQ(run(stops, include, text, cuts), expected(stops, include, text)) << text;
  }
}

TEST(StopMatcher, ReleasesWhatCannotBecomeAStop) {
  StopMatcher matcher({"\n\nUser:"});
  EXPECT_EQ(matcher.add("Hi\n"), "Hi");
  EXPECT_EQ(matcher.add("\nUs"), "");
  EXPECT_EQ(matcher.add("e it"), "\n\nUse it");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, RefusesAnEmptyStopString) { EXPECT_ANY_THROW(StopMatcher({""})); }

TEST(StopMatcher, WithoutStopStringsPassesEverything) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.add("abc"), "abc");
  EXPECT_FALSE(matcher.matched_index().has_value());
}

}  // namespace
}  // namespace winnow
