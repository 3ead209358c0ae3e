// The masks of tokens that are yet to be drawn, filled while the model works on their logits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "engine/sample/sample_rules.h"
#include "engine/sample/token_filter.h"

namespace winnow {

/// A filter's masks where it stood when they were filled and, along drafts, after each of these.
/// Which of them there are changes no bit: one that is missing is filled when it is needed. One
/// thread at a time.
class MasksAhead {
 public:
  /// Fills them in this order. Ends before a draft that cannot become output or that ends the run,
  /// and once `is_stopped`. Leaves the filter where it is.
  void fill(TokenFilter& filter, std::span<const TokenId> drafts, const SampleRules& rules,
            std::size_t vocab_size, const std::atomic<bool>& is_stopped);

  /// The filter has accepted a token, and taken back so many.
  void advance(TokenId token);
  void rewind(std::size_t num_tokens);

  /// Of where the filter stands, if it was filled: empty where every token may come.
  std::optional<std::span<const std::uint32_t>> find() const;

  std::int64_t num_filled() const { return static_cast<std::int64_t>(num_filled_); }

 private:
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  bool may_follow(std::size_t at, TokenId token, std::size_t vocab_size) const;
  std::span<const std::uint32_t> mask_at(std::size_t at) const {
    return std::span(words_).subspan(at * num_words_, num_words_);
  }

  std::size_t num_words_ = 0;         // of a mask
  std::size_t num_filled_ = 0;        // masks
  std::vector<std::uint32_t> words_;  // [num_filled_][num_words_]
  std::vector<std::uint8_t> is_free_;
  std::vector<TokenId> path_;         // drafts between the masks
  std::size_t length_ = 0;            // tokens accepted since they were filled
  std::size_t first_off_ = kNowhere;  // the first of these, counted from 1, that left the path
};

}  // namespace winnow
