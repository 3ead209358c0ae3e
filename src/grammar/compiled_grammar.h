// A grammar made ready for one vocabulary, and a place in it. XGrammar's types stay behind this.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/strong_id.h"

namespace winnow {

class GrammarVocabulary;

/// Immutable; shared by all requests that ask for it. Any thread.
class CompiledGrammar {
 public:
  struct Impl;
  explicit CompiledGrammar(std::unique_ptr<const Impl> impl);
  ~CompiledGrammar();

  const Impl& impl() const { return *impl_; }
  const GrammarVocabulary& vocabulary() const;
  std::int64_t num_bytes() const;  // of memory, roughly

 private:
  std::unique_ptr<const Impl> impl_;
};

/// How far one text has come in a grammar. One thread at a time; nothing here throws.
class GrammarState {
 public:
  /// At the start of it.
  explicit GrammarState(std::shared_ptr<const CompiledGrammar> grammar);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;
  GrammarState& operator=(GrammarState&&) noexcept;

  /// Bit t % 32 of mask[t / 32]: token t may come next. False: every token may, and `mask` holds
  /// nothing of use. Past the end of the grammar only stop tokens may.
  bool fill_mask(std::span<std::uint32_t> mask);

  /// Each is one step. False, and no step made, where the grammar does not go on that way.
  [[nodiscard]] bool accept(TokenId token);
  [[nodiscard]] bool accept_text(std::string_view text);
  void rollback(std::int32_t num_steps);

  GrammarState clone() const;
  const std::shared_ptr<const CompiledGrammar>& grammar() const { return grammar_; }

 private:
  struct Impl;
  GrammarState(std::shared_ptr<const CompiledGrammar> grammar, std::unique_ptr<Impl> impl);
  void allow_stop_only(std::span<std::uint32_t> mask) const;

  std::shared_ptr<const CompiledGrammar> grammar_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
