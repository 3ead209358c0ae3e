// Token ids to text, a few at a time, for streaming. A UTF-8 character is never split: up to
// three bytes of an unfinished one are held back until it completes or the stream ends.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace winnow {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  /// Markers of thinking and tool calls stay, for a parser that reads them.
  bool keep_format_markers = false;
};

/// One per sequence; used by one thread at a time. The tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {});

  /// Appends ids and returns the text that became complete: well-formed UTF-8, maybe empty.
  /// Ill-formed bytes that no continuation can mend come out as U+FFFD, one per maximal subpart,
  /// so the concatenation of all results equals Tokenizer::decode of all ids.
  std::string add(std::span<const TokenId> ids);
  std::string add(TokenId id) { return add(std::span<const TokenId>(&id, 1)); }

  /// Ends the stream: what is held back becomes U+FFFD. The object is then as new.
  std::string finish();

  /// Bytes held back now, at most 3.
  std::string_view held_bytes() const { return pending_; }

  /// The bytes `id` contributes to the text: empty for a special token that is skipped. This is
  /// what an API's `logprobs[].bytes` reports.
  std::string_view visible_bytes(TokenId id) const;

 private:
  std::string take_complete(bool is_end);

  const Tokenizer* tokenizer_;
  DetokenizerOptions options_;
  std::string pending_;
};

}  // namespace winnow
