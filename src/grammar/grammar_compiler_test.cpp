#include "grammar/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "grammar/schema_check.h"
#include "grammar/testing/grammar_text.h"

namespace winnow {
namespace {

using namespace testing;

std::shared_ptr<const CompiledGrammar> compile(GrammarKind kind, const std::string& text) {
  return tiny_compiler().compile({.kind = kind, .text = text});
}

std::string reason(const GrammarSource& source) {
  try {
    (void)tiny_compiler().compile(source);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(GrammarCompiler, SchemaAllowsWhatFitsItAndNothingElse) {
  const auto grammar = compile_schema(R"({"type":"object","properties":{"name":{"type":"string"},
      "age":{"type":"integer"}},"required":["name","age"],"additionalProperties":false})");
  EXPECT_TRUE(accepts(grammar, R"({"name":"Ada","age":36})"));
  EXPECT_TRUE(accepts(grammar, "{ \"name\" : \"Ad\\u0061 ]<]\", \"age\": -1}"));
  EXPECT_FALSE(accepts(grammar, R"({"name":"Ada"})"));
  EXPECT_FALSE(accepts(grammar, R"({"name":"Ada","age":"36"})"));
  EXPECT_FALSE(accepts(grammar, R"({"name":"Ada","age":36} and more)"));
  EXPECT_FALSE(accepts(grammar, R"({"name":"Ada","age":36,"x":1})"));
}

TEST(GrammarCompiler, RegexGrammarAndChoiceAreOfTheWholeAnswer) {
  const auto regex = compile(GrammarKind::kRegex, "[0-9]{3}-(a|b)+");
  EXPECT_TRUE(accepts(regex, "123-abba"));
  EXPECT_FALSE(accepts(regex, "123-"));
  EXPECT_FALSE(accepts(regex, " 123-a"));
  const auto ebnf =
      compile(GrammarKind::kEbnf, "root ::= \"select \" col\ncol ::= \"a\" | \"b\"\n");
  EXPECT_TRUE(accepts(ebnf, "select b"));
  EXPECT_FALSE(accepts(ebnf, "select c"));
}

TEST(GrammarCompiler, AnyJsonObjectIsAllowedWithoutProperties) {
  const auto grammar = compile_schema(R"({"type":"object"})");
  EXPECT_TRUE(accepts(grammar, R"({"a":[1,2,{"b":null}],"c":1.5e3})"));
  EXPECT_TRUE(accepts(grammar, "{}"));
  EXPECT_FALSE(accepts(grammar, "[1]"));
}

// A special token is not part of the visible text: a grammar that took it for its spelling would
// be right about another text than the client's.
TEST(GrammarCompiler, SpecialTokensAreNeverAllowedInText) {
  const auto grammar = compile_schema(R"({"type":"string"})");
  GrammarState state(grammar);
  ASSERT_TRUE(state.accept_text("\"a"));
  std::vector<std::uint32_t> mask(grammar->vocabulary().num_mask_words());
  ASSERT_TRUE(state.fill_mask(mask));
  for (const char* special : {"[e~[", "]~b]", "<mm:think>", "</mm:think>", "]<]minimax[>["}) {
    EXPECT_FALSE(is_allowed(mask, *tiny_tokenizer().token_to_id(special))) << special;
  }
  EXPECT_FALSE(is_allowed(mask, tiny_vocab_size() - 1));
}

TEST(GrammarCompiler, AStepTakenBackLeavesNoTrace) {
  const auto grammar = compile_schema(R"({"type":"array","items":{"type":"integer"}})");
  const std::size_t words = grammar->vocabulary().num_mask_words();
  GrammarState state(grammar);
  std::vector<std::vector<std::uint32_t>> masks;
  const std::vector<TokenId> tokens = tiny_tokenizer().encode("[1, 22,333 ]");
  for (const TokenId token : tokens) {
    masks.emplace_back(words);
    ASSERT_TRUE(state.fill_mask(masks.back()));
    ASSERT_TRUE(state.accept(token));
  }
  ASSERT_TRUE(state.accept(tiny_stop_id()));
  ASSERT_TRUE(state.accept(tiny_stop_id()));  // ignore_eos: a run may go on past the end
  std::vector<std::uint32_t> mask(words);
  ASSERT_TRUE(state.fill_mask(mask));
  for (TokenId token = 0; token < tiny_vocab_size(); ++token) {
    ASSERT_EQ(is_allowed(mask, token), token == tiny_stop_id());
  }
  state.rollback(2);
  for (std::size_t i = tokens.size(); i-- > 0;) {
    state.rollback(1);
    ASSERT_TRUE(state.fill_mask(mask));
    EXPECT_EQ(mask, masks[i]) << i;
  }
}

TEST(GrammarCompiler, RandomWalksEndInJsonOfTheSchema) {
  const auto grammar = compile_schema(R"({"type":"object","properties":{
      "kind":{"enum":["x","y"]},"n":{"type":"integer","minimum":0,"maximum":99},
      "list":{"type":"array","items":{"type":"boolean"},"maxItems":3},"s":{"type":"string","maxLength":5}},
      "required":["kind","n","list","s"]})");
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int num_ended = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string bytes = random_text(grammar, random, 400);
    if (bytes.empty()) continue;
    ++num_ended;
    // Bytes that are no UTF-8 (XGrammar allows surrogates and long forms) are shown as U+FFFD.
    const auto text =
        nlohmann::json::parse(
            nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
            .get<std::string>();
    const auto json = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(json.is_object()) << text;
    EXPECT_TRUE(json["kind"] == "x" || json["kind"] == "y") << text;
    EXPECT_TRUE(json["n"].is_number_integer() && json["n"] >= 0 && json["n"] <= 99) << text;
    EXPECT_LE(json["list"].size(), 3U) << text;
    EXPECT_TRUE(json["s"].is_string()) << text;
  }
  EXPECT_GT(num_ended, 20);
}

TEST(GrammarCompiler, SaysWhyAGrammarIsRefused) {
  EXPECT_THAT(reason({.kind = GrammarKind::kRegex, .text = "[a-"}), ::testing::Not(""));
  EXPECT_THAT(reason({.kind = GrammarKind::kEbnf, .text = "root ::= missing"}), ::testing::Not(""));
  EXPECT_THAT(reason({.kind = GrammarKind::kStructuralTag, .text = "{}"}), ::testing::Not(""));
  EXPECT_THAT(reason({.kind = GrammarKind::kRegex, .text = std::string(300 << 10, 'a')}),
              ::testing::HasSubstr("at most"));
  std::string deep;
  for (int i = 0; i < 20'000; ++i) deep += "(";
  EXPECT_THAT(reason({.kind = GrammarKind::kRegex, .text = deep}), ::testing::Not(""));
}

TEST(GrammarCompiler, CompilesOnceWhateverManyAskForAtOnce) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_vocab_size(), {tiny_stop_id()});
  const GrammarSource source{.text = R"({"type":"object","properties":{"a":{"type":"number"}}})"};
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const CompiledGrammar>> got(6);
  for (auto& one : got) {
    threads.emplace_back([&compiler, &source, &one] { one = compiler.compile(source); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : got) EXPECT_EQ(one, got[0]);
  EXPECT_EQ(compiler.counts().num_compiled, 1);
  EXPECT_EQ(compiler.counts().num_hits, 5);
}

/// Takes the longer to compile the more members there are.
std::string many_members(int count) {
  std::string schema = R"({"type":"object","properties":{)";
  for (int i = 0; i < count; ++i) {
    schema += (i > 0 ? R"(,"p)" : R"("p)") + std::to_string(i) +
              R"(":{"type":"array","items":{"type":"string"}})";
  }
  return schema + "}}";
}

// XGrammar cannot be stopped: what is past the limit is seen, holds no other grammar up, and is
// kept once it is done.
TEST(GrammarCompiler, ACompilationPastItsLimitIsReplacedAndCounted) {
  const std::string schema = many_members(1500);
  GrammarCompiler compiler(tiny_tokenizer(), tiny_vocab_size(), {tiny_stop_id()},
                           {.max_wait = std::chrono::milliseconds(5), .num_threads = 1});
  const auto is_refused = [&](const std::string& text, ErrorCode& code) {
    try {
      (void)compiler.compile({.text = text});
      return false;
    } catch (const Error& error) {
      code = error.code();
      return true;
    }
  };
  const auto wait_for_overdue = [&](std::int64_t count) {
    while (compiler.counts().num_overdue != count) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  ErrorCode code{};
  ASSERT_TRUE(is_refused(schema, code));
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  wait_for_overdue(1);
  ASSERT_TRUE(is_refused(schema, code));  // at once
  EXPECT_EQ(compiler.counts().num_hits, 0);
  // Another takes the second thread, and a third finds none.
  ASSERT_TRUE(is_refused(schema + " ", code));
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  wait_for_overdue(2);
  ASSERT_TRUE(is_refused("{}", code));
  EXPECT_EQ(code, ErrorCode::kQueueFull);
  wait_for_overdue(0);
  EXPECT_FALSE(is_refused(schema, code));
  EXPECT_EQ(compiler.counts().num_compiled, 2);
  while (is_refused(R"({"type":"null"})", code)) EXPECT_EQ(code, ErrorCode::kInvalidArgument);
}

// Of two that are past the limit together one thread is too many afterwards: it ends, and is joined
// before another grammar is compiled.
TEST(GrammarCompiler, ReplacedThreadsAreJoined) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_vocab_size(), {tiny_stop_id()},
                           {.max_wait = std::chrono::milliseconds(0), .num_threads = 1});
  for (int i = 1; i <= 6; ++i) {
    for (const char* end : {"", " "}) {
      EXPECT_THROW((void)compiler.compile({.text = many_members(300 + i) + end}), Error);
      EXPECT_LE(compiler.counts().num_threads, 3);
      while (compiler.counts().num_overdue == 0 && compiler.counts().num_compiled < 2 * i - 1) {
        std::this_thread::yield();
      }
    }
    while (compiler.counts().num_compiled < 2 * i || compiler.counts().num_overdue > 0) {
      std::this_thread::yield();
    }
  }
}

TEST(GrammarCompiler, TheTextOfAKeptGrammarCounts) {
  constexpr std::int64_t kMaxBytes = 1 << 20;
  GrammarCompiler compiler(tiny_tokenizer(), tiny_vocab_size(), {tiny_stop_id()},
                           {.max_cache_bytes = kMaxBytes});
  for (int i = 0; i < 20; ++i) {
    const std::string note(100'000 + static_cast<std::size_t>(i), 'x');
    (void)compiler.compile({.text = R"({"type":"null","description":")" + note + R"("})"});
  }
  EXPECT_LE(compiler.counts().cached_bytes, kMaxBytes);
  EXPECT_THAT(compiler.counts().num_cached, ::testing::AllOf(::testing::Ge(1), ::testing::Le(5)));
}

TEST(GrammarCompiler, ForgetsTheLeastRecentlyUsed) {
  GrammarCompiler compiler(tiny_tokenizer(), tiny_vocab_size(), {tiny_stop_id()},
                           {.max_cache_bytes = 1});
  for (int i = 0; i < 5; ++i) {
    (void)compiler.compile(
        {.kind = GrammarKind::kRegex, .text = "a{" + std::to_string(i + 1) + "}"});
  }
  EXPECT_EQ(compiler.counts().num_cached, 1);
  EXPECT_EQ(compiler.counts().num_compiled, 5);
}

// Schemas come from anyone: each mutation is compiled or refused with an Error, and nothing else.
TEST(GrammarCompiler, MutatedSchemasAreCompiledOrRefused) {
  const std::vector<std::string> pieces = {R"("type")",
                                           R"("object")",
                                           R"("properties")",
                                           R"("items")",
                                           R"("$ref")",
                                           R"("#")",
                                           R"("anyOf")",
                                           R"("minLength")",
                                           R"("maxItems")",
                                           R"("pattern")",
                                           R"("enum")",
                                           "[",
                                           "]",
                                           "{",
                                           "}",
                                           ",",
                                           ":",
                                           "1",
                                           "-1",
                                           "null",
                                           "true",
                                           R"("array")",
                                           R"("string")",
                                           R"("required")"};
  const std::string seeds[] = {
      R"({"type":"object","properties":{"a":{"type":"string","maxLength":3},"b":{"$ref":"#"}}})",
      R"({"anyOf":[{"type":"array","items":{"enum":[1,"x"]},"maxItems":2},{"type":"null"}]})",
      R"({"type":"string","pattern":"^[a-z]{1,3}$"})"};
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int num_compiled = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = seeds[random() % 3];
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % (text.size() + 1);
      const std::size_t cut = std::min(random() % 12, text.size() - at);
      text.replace(at, cut, random() % 4 == 0 ? "" : pieces[random() % pieces.size()]);
    }
    const auto schema = nlohmann::ordered_json::parse(text, nullptr, false);
    if (schema.is_discarded()) continue;
    SCOPED_TRACE(text);
    try {
      check_schema(schema, "s");
      GrammarState state(tiny_compiler().compile({.text = compilable_schema(schema)}));
      std::vector<std::uint32_t> mask((static_cast<std::size_t>(tiny_vocab_size()) + 31) / 32);
      (void)state.fill_mask(mask);
      ++num_compiled;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(num_compiled, 10);
}

}  // namespace
}  // namespace winnow
