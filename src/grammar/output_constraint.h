// A grammar for a reply that may think first: free until the thinking ends, in the grammar from
// there on. Where thinking begins and ends is read from the text as text/reasoning_parser.h reads
// it, since a model may spell a marker out of ordinary tokens. Source: spec/frontend.md section 3.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiled_grammar.h"

namespace winnow {

/// Where a reply begins.
enum class ConstraintStart {
  kAnswer,    // in the grammar
  kOpen,      // thinking, or a bare closer, may come first
  kThinking,  // the prompt opened the thinking
};

/// One thread at a time.
class OutputConstraint {
 public:
  /// With `tool_block_ends_thinking` a block of tool calls inside the thinking is the answer: it
  /// is read by the grammar from its first marker on.
  OutputConstraint(std::shared_ptr<const CompiledGrammar> grammar, ConstraintStart start,
                   bool tool_block_ends_thinking);

  /// As TokenFilter::fill_mask().
  [[nodiscard]] bool fill_mask(std::span<std::uint32_t> mask);
  /// As TokenFilter::end_detour(): out of the thinking, by its closer.
  std::optional<TokenId> end_detour() const;
  void accept(TokenId token);
  /// At most as many as kMaxUndo of the last tokens.
  void rollback(std::int32_t num_tokens);
  std::unique_ptr<OutputConstraint> clone() const;

  static constexpr std::size_t kMaxUndo = 256;

 private:
  enum class Phase : std::uint8_t { kStart, kThinking, kAnswer };

  /// What one token changed.
  struct Undo {
    Phase phase;
    bool is_grammar_alive;
    std::int8_t num_steps;  // of grammar_
    std::string seen;
    std::optional<GrammarState> replaced;  // grammar_ before the answer began
  };

  OutputConstraint(const OutputConstraint& other);
  const GrammarVocabulary& vocabulary() const { return grammar_.grammar()->vocabulary(); }

  void fill_thinking_mask(std::span<std::uint32_t> mask);
  void fill_start_mask(std::span<std::uint32_t> mask);
  void accept_at_start(TokenId token, Undo& undo);
  void accept_in_thinking(std::string_view bytes, Undo& undo);
  void begin_answer(std::string_view text, Undo& undo);
  /// Whether the answer may begin with `text`.
  [[nodiscard]] bool may_begin(std::string_view text) const;
  /// The first marker in `text` that ends thinking: where the answer begins.
  std::optional<std::size_t> answer_begin(std::string_view text) const;

  GrammarState grammar_;
  Phase phase_;
  bool tool_block_ends_thinking_;
  bool is_grammar_alive_ = true;  // at the start: what was written may be the answer's beginning
  std::string seen_;              // at the start: all; in thinking: what may begin a marker
  std::deque<Undo> undo_;
};

}  // namespace winnow
