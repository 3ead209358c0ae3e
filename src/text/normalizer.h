// Unicode normal forms with the alignment of each byte to the text it came from. ICU's data decides
// what composes; the alignment follows the public library's, so that offsets agree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace winnow {

/// Text that remembers its source. Untouched text is a view; changed text is owned.
class AlignedText {
 public:
  /// `source` is a stretch of the whole text that begins at byte `source_begin`.
  AlignedText(std::string_view source, std::int64_t source_begin)
      : source_(source), source_begin_(source_begin) {}

  std::string_view view() const { return is_changed_ ? std::string_view(owned_) : source_; }

  /// Source range of the whole characters that bytes [begin, end) belong to. begin < end.
  TokenOffsets source_range(std::size_t begin, std::size_t end) const;

  /// One character of a new text: what becomes of the current character is told by `change`,
  /// 0: replaces the next one; -n: replaces it and drops the n after it; 1: is inserted.
  struct Edit {
    std::uint32_t code_point;
    std::int32_t change;
  };
  void apply(const std::vector<Edit>& edits);

  struct Range {
    std::int32_t begin;
    std::int32_t end;
  };
  /// Replaces the text; `alignment` has one entry per byte, relative to the whole text.
  void assign(std::string text, std::vector<Range> alignment);
  /// The part [begin, end) of view(). Refers to the same source, and to this text while unchanged.
  AlignedText slice(std::size_t begin, std::size_t end) const;

  /// Alignment of one byte of view().
  Range aligned(std::size_t position) const;

 private:
  std::string_view source_;
  std::int64_t source_begin_;
  bool is_changed_ = false;
  std::string owned_;
  std::vector<Range> alignment_;  // per byte of owned_
};

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

void normalize(NormalForm form, AlignedText& text);

}  // namespace winnow
