#include "text/normalizer.h"

#include <unicode/normalizer2.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "text/unicode.h"

namespace winnow {

namespace {

struct Decomposed {
  std::uint32_t code_point;
  std::int32_t change;
  std::uint8_t combining_class;
};

struct Rules {
  const icu::Normalizer2* normalizer;
  bool composes;
};

Rules rules_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  if (U_FAILURE(status) != 0) {
    throw Error(ErrorCode::kInternal,
                std::string("ICU normalisation data: ") + u_errorName(status));
  }
  return {normalizer, form == NormalForm::kNfc || form == NormalForm::kNfkc};
}

std::vector<Decomposed> decompose(std::string_view text, const icu::Normalizer2& normalizer) {
  std::vector<Decomposed> out;
  out.reserve(text.size());
  std::size_t run = 0;  // start of the characters that may still have to be ordered
  const auto order_run = [&] {
    if (out.size() - run > 1) {
      std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(run), out.end(),
                       [](const Decomposed& a, const Decomposed& b) {
                         return a.combining_class < b.combining_class;
                       });
    }
    run = out.size();
  };
  const auto push = [&](std::uint32_t c, std::int32_t change) {
    const std::uint8_t combining_class =
        c < 0x300 ? std::uint8_t{0} : normalizer.getCombiningClass(static_cast<UChar32>(c));
    if (combining_class == 0) order_run();
    out.push_back({c, change, combining_class});
  };
  icu::UnicodeString parts;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = step_utf8(text, i);
    i += step.num_bytes;
    if (step.code_point < 0xA0 ||
        normalizer.getDecomposition(static_cast<UChar32>(step.code_point), parts) == 0) {
      push(step.code_point, 0);
      continue;
    }
    std::int32_t change = 0;
    for (std::int32_t k = 0; k < parts.length(); k = parts.moveIndex32(k, 1)) {
      push(static_cast<std::uint32_t>(parts.char32At(k)), change);
      change = 1;
    }
  }
  order_run();
  return out;
}

// Canonical composition. `change` of a composed character counts the characters it swallowed.
std::vector<AlignedText::Edit> compose(std::span<const Decomposed> characters,
                                       const icu::Normalizer2& normalizer) {
  using Edit = AlignedText::Edit;
  std::vector<Edit> out;
  out.reserve(characters.size());
  std::optional<Edit> starter;
  std::vector<Edit> waiting;  // marks after the starter that did not compose with it
  std::optional<int> last_class;
  const auto pair = [&](std::uint32_t a, std::uint32_t b) -> UChar32 {
    if (b < 0x300) return -1;
    return normalizer.composePair(static_cast<UChar32>(a), static_cast<UChar32>(b));
  };
  for (const Decomposed& c : characters) {
    if (!starter) {
      if (c.combining_class != 0) {
        out.push_back({c.code_point, c.change});
      } else {
        starter = Edit{c.code_point, c.change};
      }
      continue;
    }
    const bool is_blocked = last_class && *last_class >= c.combining_class;
    if (!is_blocked) {
      const UChar32 composed = pair(starter->code_point, c.code_point);
      if (composed >= 0) {
        starter = Edit{static_cast<std::uint32_t>(composed), starter->change + c.change - 1};
        continue;
      }
    }
    if (c.combining_class == 0) {
      out.push_back(*starter);
      out.insert(out.end(), waiting.begin(), waiting.end());
      waiting.clear();
      starter = Edit{c.code_point, c.change};
      last_class.reset();
    } else {
      waiting.push_back({c.code_point, c.change});
      last_class = c.combining_class;
    }
  }
  if (starter) out.push_back(*starter);
  out.insert(out.end(), waiting.begin(), waiting.end());
  return out;
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

AlignedText::Range AlignedText::aligned(std::size_t position) const {
  if (is_changed_) return alignment_[position];
  std::size_t begin = position;
  std::size_t end = position + 1;
  while (begin > 0 && is_continuation(source_[begin])) --begin;
  while (end < source_.size() && is_continuation(source_[end])) ++end;
  return {static_cast<std::int32_t>(source_begin_ + static_cast<std::int64_t>(begin)),
          static_cast<std::int32_t>(source_begin_ + static_cast<std::int64_t>(end))};
}

TokenOffsets AlignedText::source_range(std::size_t begin, std::size_t end) const {
  return {aligned(begin).begin, aligned(end - 1).end};
}

AlignedText AlignedText::slice(std::size_t begin, std::size_t end) const {
  if (!is_changed_) {
    return AlignedText(source_.substr(begin, end - begin),
                       source_begin_ + static_cast<std::int64_t>(begin));
  }
  AlignedText part(source_, source_begin_);
  const auto from = static_cast<std::ptrdiff_t>(begin);
  const auto to = static_cast<std::ptrdiff_t>(end);
  part.assign(owned_.substr(begin, end - begin),
              std::vector<Range>(alignment_.begin() + from, alignment_.begin() + to));
  return part;
}

void AlignedText::assign(std::string text, std::vector<Range> alignment) {
  owned_ = std::move(text);
  alignment_ = std::move(alignment);
  is_changed_ = true;
}

void AlignedText::apply(const std::vector<Edit>& edits) {
  const std::string_view current = view();
  std::string text;
  std::vector<Range> alignment;
  text.reserve(current.size());
  alignment.reserve(current.size());
  std::size_t offset = 0;
  const auto take_character = [&] {
    if (offset < current.size()) offset += step_utf8(current, offset).num_bytes;
  };
  const auto start = static_cast<std::int32_t>(source_begin_);
  for (const Edit& edit : edits) {
    Range range{start, start};
    if (edit.change > 0) {
      if (offset > 0) range = aligned(offset - 1);
    } else {
      if (!current.empty()) range = aligned(std::min(offset, current.size() - 1));
      for (std::int32_t i = edit.change; i <= 0; ++i) take_character();
    }
    const std::size_t before = text.size();
    append_utf8(edit.code_point, text);
    alignment.insert(alignment.end(), text.size() - before, range);
  }
  assign(std::move(text), std::move(alignment));
}

void normalize(NormalForm form, AlignedText& text) {
  const Rules rules = rules_of(form);
  const std::string_view view = text.view();
  UErrorCode status = U_ZERO_ERROR;
  const icu::StringPiece piece(view.data(), static_cast<std::int32_t>(view.size()));
  if (rules.normalizer->isNormalizedUTF8(piece, status) != 0 && U_FAILURE(status) == 0) return;
  const std::vector<Decomposed> parts = decompose(view, *rules.normalizer);
  if (rules.composes) {
    text.apply(compose(parts, *rules.normalizer));
    return;
  }
  std::vector<AlignedText::Edit> edits;
  edits.reserve(parts.size());
  for (const Decomposed& part : parts) edits.push_back({part.code_point, part.change});
  text.apply(edits);
}

}  // namespace winnow
