#include "grammar/output_constraint.h"

#include <gtest/gtest.h>

#include <random>

#include "grammar/testing/grammar_text.h"

namespace winnow {
namespace {

using namespace testing;

constexpr const char* kSchema = R"({"type":"object","properties":{"a":{"type":"integer"}},
                                    "required":["a"],"additionalProperties":false})";

OutputConstraint constraint(ConstraintStart start) {
  return {compile_schema(kSchema), start, false};
}

std::vector<TokenId> spelled(const std::string& text) {
  return tiny_tokenizer().encode(text, {.match_added_tokens = false});
}

std::vector<TokenId> tokens_of(const std::string& text) { return tiny_tokenizer().encode(text); }

struct Masked {
  bool is_masked = false;
  std::vector<std::uint32_t> mask =
      std::vector<std::uint32_t>((static_cast<std::size_t>(tiny_vocab_size()) + 31) / 32);
  explicit Masked(OutputConstraint& state) { is_masked = state.fill_mask(mask); }
  bool allows(TokenId token) const { return !is_masked || is_allowed(mask, token); }
  friend bool operator==(const Masked&, const Masked&) = default;
};

/// Whether every token is allowed where it comes, and the end after the last.
bool takes(OutputConstraint& state, const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    if (!Masked(state).allows(token)) return false;
    state.accept(token);
  }
  return Masked(state).allows(tiny_stop_id());
}

bool takes(ConstraintStart start, const std::vector<TokenId>& tokens) {
  OutputConstraint state = constraint(start);
  return takes(state, tokens);
}

// Case H2: free until the thinking ends, in the grammar from there on.
TEST(OutputConstraint, BeginsWhereTheThinkingEnds) {
  for (const auto& encode : {tokens_of, spelled}) {
    EXPECT_TRUE(takes(ConstraintStart::kThinking, encode("let me see {</mm:think>{\"a\":1}")));
    EXPECT_FALSE(takes(ConstraintStart::kThinking, encode("hm</mm:think>Sure: {\"a\":1}")));
    EXPECT_TRUE(takes(ConstraintStart::kOpen, encode("<mm:think>hm</mm:think>{\"a\":1}")));
    EXPECT_TRUE(takes(ConstraintStart::kOpen, encode("</mm:think>{\"a\":1}")));
    EXPECT_TRUE(takes(ConstraintStart::kOpen, encode("{\"a\":1}")));
    EXPECT_FALSE(takes(ConstraintStart::kOpen, encode("<mm:think>hm</mm:think>no")));
    EXPECT_FALSE(takes(ConstraintStart::kOpen, encode("Sure")));
    EXPECT_FALSE(takes(ConstraintStart::kOpen, encode("<mm:thin")));
    EXPECT_FALSE(takes(ConstraintStart::kAnswer, encode("<mm:think>hm</mm:think>{\"a\":1}")));
  }
}

TEST(OutputConstraint, ThinkingIsFreeButCannotEndTheRun) {
  OutputConstraint state = constraint(ConstraintStart::kThinking);
  for (const TokenId token : tokens_of("Some <b>text</b> < 5")) {
    const Masked masked(state);
    for (TokenId any = 0; any < tiny_vocab_size(); ++any) {
      ASSERT_EQ(masked.allows(any), any != tiny_stop_id()) << any;
    }
    state.accept(token);
  }
}

TEST(OutputConstraint, WhoWouldRatherEndIsLedOutOfTheThinkingOnly) {
  const TokenId closer = tokens_of("</mm:think>").front();
  OutputConstraint state = constraint(ConstraintStart::kOpen);
  EXPECT_EQ(state.end_detour(), std::nullopt);
  state.accept(tokens_of("<mm:think>").front());
  EXPECT_EQ(state.end_detour(), closer);
  for (const TokenId token : spelled("hm</mm:th")) state.accept(token);
  EXPECT_EQ(state.end_detour(), closer);
  state.accept(closer);
  EXPECT_EQ(state.end_detour(), std::nullopt);
  EXPECT_FALSE(Masked(state).allows(tiny_stop_id()));
  state.rollback(1);
  EXPECT_EQ(state.end_detour(), closer);
}

TEST(OutputConstraint, AToolBlockInTheThinkingIsTheAnswer) {
  const std::string block = "]<]minimax[>[<tool_call>\n";
  const auto grammar = tiny_compiler().compile({.kind = GrammarKind::kRegex,
                                                .text = "\\]<\\]minimax\\[>\\[<tool_call>\\nx",
                                                .allows_markers = true});
  for (const auto& encode : {tokens_of, spelled}) {
    OutputConstraint with(grammar, ConstraintStart::kThinking, true);
    EXPECT_TRUE(takes(with, encode("hm" + block + "x")));
    OutputConstraint after(grammar, ConstraintStart::kThinking, true);
    EXPECT_TRUE(takes(after, encode("hm</mm:think>" + block + "x")));
    OutputConstraint without(grammar, ConstraintStart::kThinking, false);
    EXPECT_FALSE(takes(without, encode("hm" + block + "y")));  // still thinking: no end
    EXPECT_TRUE(takes(without, encode("</mm:think>" + block + "x")));
  }
}

TEST(OutputConstraint, RollbackUndoesEveryStep) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (const auto& encode : {tokens_of, spelled}) {
    for (const auto& [start, text] :
         {std::pair{ConstraintStart::kThinking, "ab<</mm:think>{\"a\":12}"},
          std::pair{ConstraintStart::kOpen, "<mm:think>x</mm:think>{\"a\":12}"},
          std::pair{ConstraintStart::kOpen, "</mm:think>{ \"a\":12}"},
          std::pair{ConstraintStart::kOpen, "{\"a\":12}"}}) {
      OutputConstraint state = constraint(start);
      std::vector<Masked> masks;
      std::vector<TokenId> tokens = encode(text);
      tokens.push_back(tiny_stop_id());
      for (std::size_t at = 0; at < tokens.size();) {
        if (masks.size() == at) masks.emplace_back(state);
        ASSERT_EQ(Masked(state), masks[at]) << text << " at " << at;
        const auto back = random() % 3 == 0 ? random() % (at + 1) : 0;
        state.rollback(static_cast<std::int32_t>(back));
        at -= back;
        ASSERT_EQ(Masked(state), masks[at]) << text << " back at " << at;
        state.accept(tokens[at++]);
      }
    }
  }
}

TEST(OutputConstraint, AClonePartsWaysWithItsOriginal) {
  OutputConstraint state = constraint(ConstraintStart::kOpen);
  const std::unique_ptr<OutputConstraint> copy = state.clone();
  for (const TokenId token : tokens_of("{\"a\":")) state.accept(token);
  EXPECT_TRUE(takes(*copy, tokens_of("</mm:think>{\"a\":7}")));
  EXPECT_TRUE(takes(state, tokens_of("1}")));
}

}  // namespace
}  // namespace winnow
