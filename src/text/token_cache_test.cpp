// The token cache and the cutting of texts into pieces: the ids are those of a tokenizer that has
// seen nothing, for any history of requests, edits and evictions.
#include "text/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "text/byte_alphabet.h"
#include "text/split_scanner.h"
#include "text/text_pieces.h"
#include "text/tokenizer.h"

namespace winnow {
namespace {

using Json = nlohmann::json;
using Random = std::mt19937_64;
using testing::ElementsAre;
using testing::IsEmpty;

std::size_t below(Random& random, std::size_t n) { return random() % n; }

/// Letters, digits and blanks often, and everything that a split expression treats in its own way.
std::string random_text(Random& random, std::size_t num_bytes, bool is_well_formed = false) {
  static const std::vector<std::string> kParts = {" ",        " ",
                                                  " ",        "\n",
                                                  "\n\n",     "\r\n",
                                                  "\t",       "  ",
                                                  "\u00A0",   "\v",
                                                  "\u3000",   "\u2028",
                                                  "'s",       "'LL",
                                                  "'\u017F",  "a",
                                                  "the",      "Word",
                                                  "ABC",      "x1",
                                                  "1",        "234",
                                                  "56789",    "\u0661",
                                                  "\u00B2",   "\u00E9",
                                                  "e\u0301",  "\u01C5",
                                                  "\u02B0",   "\u4F60\u597D",
                                                  "\u0301",   "/",
                                                  "//",       ")",
                                                  "{}",       "[e~[",
                                                  "]~b]",     "]<]minimax[>[",
                                                  "[e~",      "\xF0\x9F\x98\x80",
                                                  "_",        "-",
                                                  "\\n",      "aaaa",
                                                  "hello",    " hello",
                                                  "\xE4\xBD", "\xFF"};
  const std::size_t num_parts = kParts.size() - (is_well_formed ? 2 : 0);
  std::string text;
  while (text.size() < num_bytes) text += kParts[below(random, num_parts)];
  return text;
}

Json byte_vocabulary() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[spelling_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  return vocab;
}

Json added_token(int id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

struct Variant {
  std::string_view expression;
  const char* normalizer = nullptr;
  bool has_prefix_space = false;
  bool strips = false;
  bool matches_normalized = false;
};

/// Merges reach over every kind of character, white space included, so that a word cut in two would
/// show.
Tokenizer make_tokenizer(const Variant& variant) {
  Json vocab = byte_vocabulary();
  Json merges = Json::array();
  Random random(1);
  std::vector<std::string> tokens;
  for (const auto& [token, id] : vocab.items()) tokens.push_back(token);
  for (const char* start :
       {"t h", "th e", "Ġ the", "a a", "aa aa", "h e", "he l", "hel lo", "l o", "Ċ Ċ", "Ġ Ġ",
        "ĠĠ Ġ", "Ġ h", "e Ġ", "a Ġ", "1 Ġ", "Ċ a", "s Ċ", "2 3"}) {
    const std::string pair(start);
    const std::size_t space = pair.find(' ');
    const std::string left = pair.substr(0, space), right = pair.substr(space + 1);
    if (!vocab.contains(left) || !vocab.contains(right) || vocab.contains(left + right)) continue;
    merges.push_back({left, right});
    vocab[left + right] = vocab.size();
  }
  const int first = static_cast<int>(vocab.size());
  Json added = {added_token(first, "[e~["), added_token(first + 1, "]~b]"),
                added_token(first + 2, "]<]minimax[>[")};
  if (variant.strips) added[0]["lstrip"] = added[1]["rstrip"] = true;
  if (variant.matches_normalized) added[2]["normalized"] = true;
  const Json normalizer =
      variant.normalizer == nullptr ? Json() : Json{{"type", variant.normalizer}};
  return Tokenizer::from_json(
      Json{{"added_tokens", added},
           {"normalizer", normalizer},
           {"pre_tokenizer",
            {{"type", "Sequence"},
             {"pretokenizers",
              {{{"type", "Split"},
                {"pattern", {{"Regex", variant.expression}}},
                {"behavior", "Isolated"},
                {"invert", false}},
               {{"type", "ByteLevel"},
                {"add_prefix_space", variant.has_prefix_space},
                {"use_regex", false}}}}}},
           {"decoder", {{"type", "ByteLevel"}}},
           {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}}
          .dump());
}

std::vector<std::string> words_of(const SplitScanner& scanner, std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = scanner.match_end(text, i);
    words.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

bool is_ascii_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

TEST(TextPieces, WordsOfATextAreThoseOfBothSidesOfACut) {
  Random random(11);
  for (std::size_t index = 0; index < SplitScanner::num_expressions(); ++index) {
    const SplitScanner scanner = *SplitScanner::for_expression(SplitScanner::expression(index));
    int num_cuts = 0;
    while (num_cuts < 1500) {
      const std::string text = random_text(random, 24, true);
      const std::vector<std::string> whole = words_of(scanner, text);
      for (std::size_t i = 1; i < text.size(); ++i) {
        const bool is_cut = is_ascii_word(text[i - 1]) && (text[i] == ' ' || text[i] == '\n' ||
                                                           text[i] == '\t' || text[i] == '\r');
        if (!is_cut) continue;
        ++num_cuts;
        std::vector<std::string> both = words_of(scanner, std::string_view(text).substr(0, i));
        for (std::string& word : words_of(scanner, std::string_view(text).substr(i))) {
          both.push_back(std::move(word));
        }
        ASSERT_EQ(both, whole) << "expression " << index << ", cut at " << i << " of " << text;
      }
    }
  }
}

TEST(TextPieces, ACutPlaceIsFoundAgainAfterAnEdit) {
  Random random(12);
  const std::string text = random_text(random, 200'000);
  std::vector<TextPiece> before, after;
  cut_into_pieces(text, before);
  std::string joined;
  for (const TextPiece& piece : before) joined += piece.text;
  EXPECT_EQ(joined, text);
  EXPECT_GT(before.size(), 20U);
  const std::string edited = text.substr(0, 70'000) + "an edit" + text.substr(70'003);
  cut_into_pieces(edited, after);
  std::size_t same_at_end = 0;
  while (same_at_end < std::min(before.size(), after.size()) &&
         before[before.size() - 1 - same_at_end].text ==
             after[after.size() - 1 - same_at_end].text) {
    ++same_at_end;
  }
  EXPECT_GT(same_at_end, before.size() / 3);
}

std::vector<TextSegment> random_conversation(Random& random) {
  std::vector<TextSegment> segments;
  const std::size_t count = 1 + below(random, 12);
  for (std::size_t i = 0; i < count; ++i) {
    segments.push_back({"]~b]user\n", true});
    segments.push_back({random_text(random, below(random, 3) == 0 ? 9000 : 90), false});
    if (below(random, 4) != 0) segments.push_back({"[e~[\n", true});
  }
  return segments;
}

void edit(Random& random, std::vector<TextSegment>& segments) {
  const std::size_t at = below(random, segments.size());
  std::string& text = segments[at].text;
  switch (below(random, 5)) {
    case 0:
      text.insert(below(random, text.size() + 1), random_text(random, 5));
      break;
    case 1:
      text.erase(below(random, text.size() + 1), below(random, 40));
      break;
    case 2:
      segments.erase(segments.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 3:
      segments.insert(segments.begin() + static_cast<std::ptrdiff_t>(at),
                      {random_text(random, 300), below(random, 2) == 0});
      break;
    default:
      segments.push_back({random_text(random, 100), false});
  }
  if (segments.empty()) segments.push_back({"x", false});
}

TEST(TokenCache, IdsAreThoseOfATokenizerThatHasSeenNothing) {
  std::vector<Variant> variants;
  for (std::size_t i = 0; i < SplitScanner::num_expressions(); ++i) {
    variants.push_back({.expression = SplitScanner::expression(i)});
  }
  const std::string_view m3 = variants.back().expression;
  variants.push_back({.expression = m3, .normalizer = "NFC"});
  variants.push_back({.expression = m3, .has_prefix_space = true});
  variants.push_back({.expression = m3, .strips = true});
  variants.push_back({.expression = m3, .matches_normalized = true});
  variants.push_back({.expression = R"(\s*[\r\n]+|\w+ \w|.)"});  // blanks inside its words
  Random random(13);
  for (const Variant& variant : variants) {
    const Tokenizer tokenizer = make_tokenizer(variant);
    TokenCache large(64 << 20);
    TokenCache small(20'000);  // most of what goes in falls out
    for (int conversation = 0; conversation < 4; ++conversation) {
      std::vector<TextSegment> segments = random_conversation(random);
      for (int turn = 0; turn < 8; ++turn, edit(random, segments)) {
        const std::span<const TextSegment> span(segments);
        for (const bool match : {true, false}) {
          const std::vector<TokenId> cold = tokenizer.encode(span, {.match_added_tokens = match});
          for (TokenCache* cache : {&large, &small}) {
            const EncodeOptions options{.match_added_tokens = match,
                                        .cache = cache,
                                        .num_threads = 1 + static_cast<int>(below(random, 3))};
            ASSERT_EQ(tokenizer.encode(span, options), cold);
          }
        }
      }
    }
    EXPECT_GT(large.stats().hit_bytes + (variant.matches_normalized ? 1 : 0), 0);
    EXPECT_LE(small.stats().used_bytes, small.stats().max_bytes);
  }
}

// encode() itself cuts; the path that gives offsets does not.
TEST(TokenCache, CutTextHasTheIdsOfUncutText) {
  Random random(14);
  for (std::size_t i = 0; i < SplitScanner::num_expressions(); ++i) {
    const Tokenizer tokenizer = make_tokenizer({.expression = SplitScanner::expression(i)});
    for (int round = 0; round < 3; ++round) {
      const std::string text = random_text(random, 80'000);
      const std::vector<TokenId> uncut = tokenizer.encode_with_offsets(text).ids;
      for (const int num_threads : {1, 2, 5}) {
        ASSERT_EQ(tokenizer.encode(text, {.num_threads = num_threads}), uncut);
      }
    }
  }
}

TEST(TokenCache, DropsWhatWasUsedLongestAgo) {
  const std::string a(500, 'a'), b(500, 'b'), c(500, 'c');
  TokenCache cache(1600);  // two entries
  const std::vector<TokenId> ids = {1, 2, 3};
  cache.insert(a, {}, ids);
  cache.insert(b, {}, ids);
  std::vector<TokenId> found;
  EXPECT_TRUE(cache.find(a, {}, found));
  cache.insert(c, {}, ids);
  EXPECT_THAT(found, ElementsAre(1, 2, 3));
  EXPECT_FALSE(cache.find(b, {}, found));
  EXPECT_TRUE(cache.find(a, {}, found));
  EXPECT_TRUE(cache.find(c, {}, found));
  EXPECT_THAT(found, ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3));
  const TokenCacheStats stats = cache.stats();
  EXPECT_EQ(stats.query_bytes, 2000);
  EXPECT_EQ(stats.hit_bytes, 1500);
  EXPECT_LE(stats.used_bytes, 1600);
}

TEST(TokenCache, ASaltKeepsCallersApart) {
  const std::string text(100, 'a');
  const std::vector<TokenId> ids = {7};
  TokenCache cache(10'000);
  cache.insert(text, "mine", ids);
  std::vector<TokenId> found;
  EXPECT_FALSE(cache.find(text, {}, found));
  EXPECT_FALSE(cache.find(text, "theirs", found));
  EXPECT_TRUE(cache.find(text, "mine", found));
  EXPECT_THAT(found, ElementsAre(7));
}

TEST(TokenCache, OfNoBytesKeepsNothing) {
  TokenCache cache(0);
  cache.insert(std::string(100, 'a'), {}, {});
  std::vector<TokenId> found;
  EXPECT_FALSE(cache.find(std::string(100, 'a'), {}, found));
  EXPECT_EQ(cache.stats().used_bytes, 0);
}

TEST(TokenCache, IsSharedByThreads) {
  const Tokenizer tokenizer =
      make_tokenizer({.expression = SplitScanner::expression(SplitScanner::num_expressions() - 1)});
  TokenCache cache(300'000);
  Random random(15);
  std::vector<std::string> texts;
  std::vector<std::vector<TokenId>> cold;
  for (int i = 0; i < 8; ++i) {
    texts.push_back(random_text(random, 40'000));
    cold.push_back(tokenizer.encode(texts.back()));
  }
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t round = 0; round < 12; ++round) {
        const std::size_t i = (round * 3 + static_cast<std::size_t>(t)) % texts.size();
        const EncodeOptions options{.cache = &cache, .num_threads = 2};
        if (tokenizer.encode(texts[i], options) != cold[i]) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

}  // namespace
}  // namespace winnow
