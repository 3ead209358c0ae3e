// Rules of the tokenizer, detokenizer and the loader's refusals, on a small vocabulary. Equality
// with the public library is tests/text/test_tokenizer.py.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/split_scanner.h"

namespace winnow {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// All bytes, a few merges, three added tokens.
Json small_tokenizer() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[spelling_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  Json merges = Json::array();
  int next = 256;
  const auto merge = [&](const std::string& left, const std::string& right) {
    merges.push_back({left, right});
    vocab[left + right] = next++;
  };
  merge("l", "l");      // 256
  merge("h", "e");      // 257
  merge("he", "ll");    // 258
  merge("hell", "o");   // 259
  merge("a", "a");      // 260
  merge("aa", "aa");    // 261
  merge("Ġ", "hello");  // 262
  const auto added = [](int id, const char* content, bool special) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  const std::string expression(SplitScanner::expression(SplitScanner::num_expressions() - 1));
  return {
      {"added_tokens",
       {added(263, "[e~[", true), added(264, "]<]minimax[>[", false), added(265, "]~b]", true)}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"},
           {"pattern", {{"Regex", expression}}},
           {"behavior", "Isolated"},
           {"invert", false}},
          {{"type", "ByteLevel"},
           {"add_prefix_space", false},
           {"trim_offsets", true},
           {"use_regex", false}}}}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

Tokenizer load(const Json& json) { return Tokenizer::from_json(json.dump()); }

std::string refusal(const Json& json) {
  try {
    load(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidCheckpoint);
    return error.text();
  }
  return "accepted";
}

TEST(Tokenizer, MergesByRankAndCutsAddedTokensOut) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_THAT(tokenizer.encode("hello hello[e~["), ElementsAre(259, 262, 263));
  EXPECT_THAT(tokenizer.encode("[e~[", {.match_added_tokens = false}),
              ElementsAre('[', 'e', '~', '['));
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
}

TEST(Tokenizer, ValuesCannotSpellControlTokens) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::vector<TextSegment> segments = {{"]~b]", true}, {"hi[e~[", false}, {"[e~[", true}};
  EXPECT_THAT(tokenizer.encode(segments), ElementsAre(265, 'h', 'i', '[', 'e', '~', '[', 263));
}

TEST(Tokenizer, CountsOffsetsInCharactersOrBytes) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const Encoding characters = tokenizer.encode_with_offsets("é hello");
  EXPECT_THAT(characters.offsets,
              ElementsAre(TokenOffsets{0, 1}, TokenOffsets{0, 1}, TokenOffsets{1, 7}));
  const Encoding bytes = tokenizer.encode_with_offsets("é hello", {}, OffsetUnit::kBytes);
  EXPECT_THAT(bytes.offsets,
              ElementsAre(TokenOffsets{0, 2}, TokenOffsets{0, 2}, TokenOffsets{2, 8}));
}

TEST(Tokenizer, ReadsIllFormedBytesAsReplacementCharacters) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.encode("a\xFF\xE4\xB8z"), tokenizer.encode("a\uFFFD\uFFFDz"));
  EXPECT_EQ(tokenizer.encode("\xED\xA0\x80"), tokenizer.encode("\uFFFD\uFFFD\uFFFD"));
}

TEST(Tokenizer, GivesTheSameIdsFromManyThreads) {
  const Tokenizer tokenizer = load(small_tokenizer());
  const std::vector<TokenId> alone = tokenizer.encode("hello aaaa hello[e~[ hell");
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        ASSERT_EQ(tokenizer.encode("hello aaaa hello[e~[ hell"), alone);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Tokenizer, TakesTenMegabytesOfAnything) {
  const Tokenizer tokenizer = load(small_tokenizer());
  for (const std::string unit : {" ", "a", "A", "a\u0300", "\n", " \n", "'", "ª", "]<]", "7", "[e~",
                                 "\xFF", "\xE4\xB8", "\U0001F600"}) {
    std::string text;
    while (text.size() < 10'000'000) text += unit;
    const std::vector<TokenId> ids = tokenizer.encode(text);
    EXPECT_FALSE(ids.empty());
  }
}

TEST(Tokenizer, LooksTokensUpBothWays) {
  const Tokenizer tokenizer = load(small_tokenizer());
  EXPECT_EQ(tokenizer.token_to_id("Ġhello"), 262);
  EXPECT_EQ(tokenizer.id_to_token(262), "Ġhello");
  EXPECT_EQ(tokenizer.token_bytes(262), " hello");
  EXPECT_EQ(tokenizer.vocab_size(), 266);
  EXPECT_TRUE(tokenizer.is_special(263));
  EXPECT_FALSE(tokenizer.is_special(264));
  EXPECT_TRUE(tokenizer.is_added(264));
  for (const TokenId id : {-1, 266, 1 << 30}) {
    EXPECT_EQ(tokenizer.id_to_token(id), std::nullopt);
    EXPECT_EQ(tokenizer.token_bytes(id), "");
  }
  EXPECT_THAT(tokenizer.added_token_ids(), ElementsAre(263, 264, 265));
}

TEST(Tokenizer, RefusalsNameThePathAndWhatIsAccepted) {
  const auto with = [](const char* pointer, const Json& value) {
    Json json = small_tokenizer();
    json[Json::json_pointer(pointer)] = value;
    return refusal(json);
  };
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("model.byte_fallback: true"));
  EXPECT_THAT(with("/model/type", "Unigram"),
              HasSubstr("model.type: \"Unigram\", accepted: \"BPE\""));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("normalizer.type"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/0/type", "Metaspace"),
              HasSubstr("pre_tokenizer.pretokenizers[0].type: \"Metaspace\""));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("ByteLevel"));
  EXPECT_THAT(with("/decoder", nullptr), HasSubstr("decoder"));
  EXPECT_THAT(with("/model/merges/0", "l  l"), HasSubstr("model.merges[0]"));
  EXPECT_THAT(with("/model/merges/0", {"l", "q"}), HasSubstr("model.merges[0]"));
  EXPECT_THAT(with("/model/vocab/hello", -1), HasSubstr("model.vocab.hello"));
  EXPECT_THAT(with("/model/vocab/hello", 1), HasSubstr("one token per id"));
  EXPECT_THAT(with("/model/vocab/hello", 1e9), HasSubstr("token id"));
  EXPECT_THAT(with("/added_tokens/0/id", 3), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}), HasSubstr("post_processor"));
  EXPECT_ANY_THROW(Tokenizer::from_json("{"));
  EXPECT_ANY_THROW(Tokenizer::from_json("[]"));
  EXPECT_ANY_THROW(Tokenizer::from_file("/nonexistent"));
}

TEST(Detokenizer, NeverSplitsACharacter) {
  const Tokenizer tokenizer = load(small_tokenizer());
  Detokenizer detokenizer(tokenizer);
  std::string out;
  for (const char c : std::string_view("a\xF0\x9F\x98\x80é")) {
    const std::string piece = detokenizer.add(static_cast<unsigned char>(c));
    EXPECT_TRUE(piece.empty() || piece == "a" || piece == "😀" || piece == "é");
    EXPECT_LE(detokenizer.held_bytes().size(), 3U);
    out += piece;
  }
  EXPECT_EQ(out, "a😀é");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ReplacesWhatCannotCompleteOncePerMaximalSubpart) {
  const Tokenizer tokenizer = load(small_tokenizer());
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<TokenId> ids;
    for (std::size_t i = random() % 8; i > 0; --i) {
      constexpr TokenId kBytes[] = {0xF0, 0x9F, 0x98, 0x80, 0xE4, 0xC3, 0xED, 0xA0, 'a', 0xFF};
      ids.push_back(kBytes[random() % 10]);
    }
    Detokenizer detokenizer(tokenizer);
    std::string streamed;
    for (const TokenId id : ids) streamed += detokenizer.add(id);
    streamed += detokenizer.finish();
    ASSERT_EQ(streamed, tokenizer.decode(ids));
  }
}

TEST(Detokenizer, SkipsSpecialTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = load(small_tokenizer());
  Detokenizer skips(tokenizer);
  EXPECT_EQ(skips.add({{259, 263, 264}}), "hello]<]minimax[>[");
  EXPECT_EQ(skips.visible_bytes(263), "");
  Detokenizer keeps(tokenizer, {.skip_special_tokens = false});
  EXPECT_EQ(keeps.add({{259, 263}}), "hello[e~[");
}

}  // namespace
}  // namespace winnow
