// Text to token ids and back for byte-level BPE vocabularies in Hugging Face tokenizer.json form.
// Ids, offsets and decoded text equal those of the public `tokenizers` library for the files that
// are accepted; a file that asks for anything else is refused by name at load.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"
#include "text/text_segment.h"

namespace winnow {

class TokenCache;

struct EncodeOptions {
  /// Adds what the file's post-processor adds (BOS, EOS). Off for a rendered chat template, which
  /// prints its own opening token.
  bool add_special_tokens = false;
  /// Recognise added-token strings such as "[e~[" in the text. Off: they are ordinary text.
  bool match_added_tokens = true;
  /// What was encoded before is taken from here, with the same ids; what was not is added. Of this
  /// tokenizer only; not used for offsets.
  TokenCache* cache = nullptr;
  std::string_view cache_salt{};  // see TokenCache
  /// Threads that may encode a long text together, the caller's included. The ids are the same.
  int num_threads = 1;
};

/// Half-open range of the original text.
struct TokenOffsets {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const TokenOffsets&, const TokenOffsets&) = default;
};

enum class OffsetUnit {
  kBytes,       // of the text after ill-formed UTF-8 was replaced: the text itself when well-formed
  kCharacters,  // Unicode code points, as the library's Python interface reports
};

struct Encoding {
  std::vector<TokenId> ids;
  /// One per id. A token that holds part of a character covers the whole character, so neighbours
  /// may overlap; tokens added by the post-processor have {0, 0}.
  std::vector<TokenOffsets> offsets;
};

/// Immutable after construction; every member may be called from any thread at once.
class Tokenizer {
 public:
  /// `path` is a tokenizer.json or the model folder that holds one. Throws Error
  /// (kInvalidCheckpoint, kIo) naming the JSON path at fault and what is accepted there.
  static Tokenizer from_file(const std::filesystem::path& path);
  static Tokenizer from_json(std::string_view json, std::string_view name = "tokenizer.json");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Any bytes are accepted: ill-formed UTF-8 counts as U+FFFD, one per maximal subpart. Time is
  /// O(n log n) in the longest word and linear otherwise. Throws kTooLarge from 2^31 bytes.
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const;

  /// Encodes the concatenation of the segments as one text, except that added tokens are matched
  /// only where a whole match lies in template text. Equal to encode() of the joined text unless
  /// a value spells an added token.
  std::vector<TokenId> encode(std::span<const TextSegment> segments,
                              const EncodeOptions& options = {}) const;

  Encoding encode_with_offsets(std::string_view text, const EncodeOptions& options = {},
                               OffsetUnit unit = OffsetUnit::kCharacters) const;

  /// Well-formed UTF-8; ids without a string are skipped, as are special tokens if asked.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const;

  /// The bytes a token stands for; empty for an id without a string or out of range. Valid as
  /// long as the tokenizer lives.
  std::string_view token_bytes(TokenId id) const;

  /// The string as tokenizer.json spells it ("Ġthe"), or nothing for an id without one.
  std::optional<std::string_view> id_to_token(TokenId id) const;
  std::optional<TokenId> token_to_id(std::string_view token) const;

  /// 1 + the largest id that has a string. A checkpoint may have more embedding rows.
  int vocab_size() const;
  bool is_special(TokenId id) const;
  bool is_added(TokenId id) const;
  std::vector<TokenId> added_token_ids() const;  // ascending

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
