#include "grammar/grammar_vocabulary.h"

#include <algorithm>
#include <utility>

#include "text/minimax_markers.h"

namespace winnow {

namespace {

/// Those of `sorted` whose key is `key`. Not equal_range: clang 14, which builds the fuzzers,
/// refuses the subrange of GCC's library.
template <typename F>
std::span<const TokenId> of_key(std::span<const TokenId> sorted, std::string_view key, F key_of) {
  return {std::ranges::lower_bound(sorted, key, {}, key_of),
          std::ranges::upper_bound(sorted, key, {}, key_of)};
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer, std::int32_t vocab_size,
                                     std::vector<TokenId> stop_ids)
    : tokenizer_(&tokenizer), size_(vocab_size), stop_ids_(std::move(stop_ids)) {
  std::ranges::sort(stop_ids_);
  for (TokenId token = 0; token < size_; ++token) {
    const bool is_stop = std::ranges::binary_search(stop_ids_, token);
    if (!is_stop && !bytes(token).empty()) by_bytes_.push_back(token);
  }
  std::ranges::sort(by_bytes_, {}, [this](TokenId token) { return bytes(token); });
}

std::string_view GrammarVocabulary::bytes(TokenId token) const {
  return tokenizer_->token_bytes(token);
}

std::vector<std::string> GrammarVocabulary::texts(bool with_markers) const {
  std::vector<std::string> out(static_cast<std::size_t>(size_));
  for (TokenId token = 0; token < size_; ++token) {
    const std::string_view text = bytes(token);
    const bool is_hidden =
        tokenizer_->is_special(token) || (tokenizer_->is_added(token) && is_format_marker(text));
    if (!is_hidden || (with_markers && is_format_marker(text))) {
      out[static_cast<std::size_t>(token)] = text;
    }
  }
  return out;
}

std::span<const TokenId> GrammarVocabulary::starting_with(std::string_view prefix) const {
  return of_key(by_bytes_, prefix,
                [&](TokenId token) { return bytes(token).substr(0, prefix.size()); });
}

std::span<const TokenId> GrammarVocabulary::spelling(std::string_view text) const {
  return of_key(by_bytes_, text, [this](TokenId token) { return bytes(token); });
}

}  // namespace winnow
