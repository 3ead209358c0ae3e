#include "text/detokenizer.h"

#include "text/minimax_markers.h"
#include "text/unicode.h"

namespace winnow {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options)
    : tokenizer_(&tokenizer), options_(options) {}

std::string_view Detokenizer::visible_bytes(TokenId id) const {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  const bool is_skipped = options_.skip_special_tokens && tokenizer_->is_special(id) &&
                          !(options_.keep_format_markers && is_format_marker(bytes));
  return is_skipped ? std::string_view() : bytes;
}

std::string Detokenizer::add(std::span<const TokenId> ids) {
  for (const TokenId id : ids) pending_.append(visible_bytes(id));
  return take_complete(false);
}

std::string Detokenizer::finish() { return take_complete(true); }

std::string Detokenizer::take_complete(bool is_end) {
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const std::size_t good = well_formed_prefix(rest);
    out.append(rest.substr(0, good));
    rest.remove_prefix(good);
    if (rest.empty()) break;
    const Utf8Step step = step_utf8(rest, 0);
    if (step.is_truncated && !is_end) break;
    out.append(kReplacementCharacter);
    rest.remove_prefix(step.num_bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

}  // namespace winnow
