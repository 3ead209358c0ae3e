// A long text as pieces that are encoded alone: at once on several threads, or not again when their
// ids are known.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "base/strong_id.h"
#include "text/tokenizer.h"

namespace winnow {

/// Text to encode, or a token that is known already (then `text` is not looked at).
struct TextPiece {
  std::string_view text;
  TokenId token = -1;
};

/// Appends pieces of a few KiB that make up `text`, none empty. Each ends after an ASCII letter or
/// digit and before ASCII white space: no alternative of a known split expression holds the one
/// before the other, and none that ends in the one looks at what follows, so the words of the text
/// are the words of its pieces. Places are chosen by the bytes before them: after an edit the
/// pieces are soon the same again, and an addition changes the last. A text without such a place
/// is one piece.
void cut_into_pieces(std::string_view text, std::vector<TextPiece>& pieces);

/// Appends the ids of a piece; called from several threads at once.
using EncodePiece = std::function<void(std::string_view text, std::vector<TokenId>& ids)>;

/// Appends the ids of all pieces in order, with the cache and the threads of `options`. What
/// `encode` throws is thrown.
void encode_pieces(const std::vector<TextPiece>& pieces, const EncodePiece& encode,
                   const EncodeOptions& options, std::vector<TokenId>& ids);

}  // namespace winnow
