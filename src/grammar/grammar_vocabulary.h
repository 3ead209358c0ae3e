// The vocabulary as grammars see it: which bytes each token writes, and which tokens write nothing
// that a grammar could allow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"
#include "text/tokenizer.h"

namespace winnow {

/// Immutable; any thread.
class GrammarVocabulary {
 public:
  /// `tokenizer` outlives it. `vocab_size` is the model's: ids without a string are never allowed.
  /// `stop_ids` end a run and may come where a grammar is complete.
  GrammarVocabulary(const Tokenizer& tokenizer, std::int32_t vocab_size,
                    std::vector<TokenId> stop_ids);

  std::int32_t size() const { return size_; }
  std::size_t num_mask_words() const { return (static_cast<std::size_t>(size_) + 31) / 32; }
  std::span<const TokenId> stop_ids() const { return stop_ids_; }
  std::string_view bytes(TokenId token) const;

  /// One string per id, empty where a grammar must not choose the token: special tokens are not
  /// part of the visible text, but for the markers of thinking and tool calls if those are wanted.
  std::vector<std::string> texts(bool with_markers) const;

  /// Tokens whose bytes start with `prefix`, in the order of their bytes.
  std::span<const TokenId> starting_with(std::string_view prefix) const;
  /// Tokens whose bytes are `text`.
  std::span<const TokenId> spelling(std::string_view text) const;

 private:
  const Tokenizer* tokenizer_;
  std::int32_t size_;
  std::vector<TokenId> stop_ids_;
  std::vector<TokenId> by_bytes_;  // tokens with bytes, sorted by them
};

}  // namespace winnow
