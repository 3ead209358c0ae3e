#include "text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pre_tokenizer.h"
#include "text/text_pieces.h"
#include "text/tokenizer_config.h"
#include "text/unicode.h"

namespace winnow {

namespace {

constexpr std::size_t kMaxTextBytes = (std::size_t{1} << 31) - 1;
constexpr std::size_t kMaxPooledScratch = 16;
constexpr std::size_t kMaxPooledWords = std::size_t{1} << 20;

struct Scratch {
  BpeScratch bpe;
  std::vector<BpeToken> tokens;
  std::vector<WordRange> words;
};

// White space (or its spelling Ġ) at both ends of a token's string, in characters.
struct EdgeSpaces {
  std::int64_t leading = 0;
  std::int64_t trailing = 0;
};

EdgeSpaces count_edge_spaces(std::string_view spelling) {
  constexpr std::uint32_t kSpelledSpace = 0x120;
  EdgeSpaces spaces;
  bool is_leading = true;
  for (std::size_t i = 0; i < spelling.size();) {
    const Utf8Step step = step_utf8(spelling, i);
    i += step.num_bytes;
    if (step.code_point == kSpelledSpace || is_white_space(step.code_point)) {
      if (is_leading) ++spaces.leading;
      ++spaces.trailing;
    } else {
      is_leading = false;
      spaces.trailing = 0;
    }
  }
  return spaces;
}

// What one encode call collects.
struct Output {
  std::vector<TokenId> ids;
  bool wants_offsets = false;
  std::vector<TokenOffsets> offsets;  // bytes of the whole text
  std::vector<EdgeSpaces> spaces;
};

std::vector<std::string> patterns_for(const std::vector<AddedToken>& tokens, bool is_normalized,
                                      const std::vector<NormalForm>& forms) {
  std::vector<std::string> patterns(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].is_normalized != is_normalized) continue;
    AlignedText text(tokens[i].content, 0);
    if (is_normalized) {
      for (const NormalForm form : forms) normalize(form, text);
    }
    patterns[i] = std::string(text.view());
  }
  return patterns;
}

// Parts of `text` whose bytes all come from one of `runs`, given in source bytes.
std::vector<ByteRange> map_runs(const AlignedText& text, std::span<const ByteRange> runs) {
  std::vector<ByteRange> mapped;
  std::size_t run = 0;
  bool is_open = false;
  for (std::size_t i = 0; i < text.view().size(); ++i) {
    const AlignedText::Range range = text.aligned(i);
    const auto begin = static_cast<std::size_t>(range.begin);
    const auto end = static_cast<std::size_t>(range.end);
    const std::size_t before = run;
    while (run < runs.size() && runs[run].end < end) ++run;
    const bool is_inside = run < runs.size() && runs[run].begin <= begin && end <= runs[run].end;
    if (is_inside && is_open && run == before) {
      mapped.back().end = i + 1;
    } else if (is_inside) {
      mapped.push_back({i, i + 1});
    }
    is_open = is_inside;
  }
  return mapped;
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kIo, fmt::format("{}: cannot be opened", path.string()));
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw Error(ErrorCode::kIo, fmt::format("{}: cannot be read", path.string()));
  return text;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerConfig config);

  void encode(std::string_view text, const ByteRange* runs, std::size_t num_runs,
              const EncodeOptions& options, Output& out) const;
  bool encodes_sections_alone(const EncodeOptions& options, const Output& out) const;
  void encode_alone(std::string_view text, std::span<const TextSection> sections,
                    const EncodeOptions& options, Output& out) const;
  void encode_section(AlignedText text, Scratch& scratch, Output& out) const;
  void encode_normalized(AlignedText text, std::span<const ByteRange> runs, bool has_runs,
                         bool match, Scratch& scratch, Output& out) const;
  void add_token(const AddedToken& token, std::string_view matched, TokenOffsets offsets,
                 Output& out) const;
  void post_process(const EncodeOptions& options, Output& out) const;
  std::unique_ptr<Scratch> take_scratch() const;
  void return_scratch(std::unique_ptr<Scratch> scratch) const;
  void set_token(TokenId id, std::string spelling, std::string bytes);

  std::vector<AddedToken> added_tokens;
  std::vector<NormalForm> normal_forms;
  std::vector<PostProcessorStep> post_processor;
  AddedTokenMatcher original_matcher;
  AddedTokenMatcher normalized_matcher;
  PreTokenizer pre_tokenizer;
  Bpe bpe;

  std::vector<std::string> spellings;  // by id; empty: no token
  std::vector<std::string> bytes;
  enum Flag : std::uint8_t { kAdded = 1, kSpecial = 2 };
  std::vector<std::uint8_t> flags;
  std::unordered_map<std::string_view, TokenId> ids;

  mutable std::mutex pool_mutex;
  mutable std::vector<std::unique_ptr<Scratch>> pool;
};

Tokenizer::Impl::Impl(TokenizerConfig config)
    : added_tokens(std::move(config.added_tokens)),
      normal_forms(std::move(config.normal_forms)),
      post_processor(std::move(config.post_processor)),
      original_matcher(added_tokens, patterns_for(added_tokens, false, normal_forms)),
      normalized_matcher(added_tokens, patterns_for(added_tokens, true, normal_forms)),
      pre_tokenizer(std::move(config.pre_tokenizer)),
      bpe(config.bpe) {
  TokenId largest = -1;
  for (const auto& [spelling, id] : config.vocab) largest = std::max(largest, id);
  for (const AddedToken& token : added_tokens) largest = std::max(largest, token.id);
  const std::size_t size = static_cast<std::size_t>(largest) + 1;  // 0 without tokens
  spellings.resize(size);
  bytes.resize(size);
  flags.resize(size);
  for (auto& [spelling, id] : config.vocab) {
    std::string token_bytes = bytes_of_spelling(spelling).value_or(spelling);
    set_token(id, std::move(spelling), std::move(token_bytes));
  }
  // A token that is matched in the normal form is decoded in it too, as the library does.
  const std::vector<std::string> normalized = patterns_for(added_tokens, true, normal_forms);
  for (std::size_t i = 0; i < added_tokens.size(); ++i) {
    const AddedToken& token = added_tokens[i];
    set_token(token.id, token.content, token.is_normalized ? normalized[i] : token.content);
    flags[static_cast<std::size_t>(token.id)] |=
        static_cast<std::uint8_t>(kAdded | (token.is_special ? kSpecial : 0));
  }
  ids.reserve(size);
  for (std::size_t i = 0; i < size; ++i) {
    if (!spellings[i].empty()) ids.emplace(spellings[i], static_cast<TokenId>(i));
  }
}

void Tokenizer::Impl::set_token(TokenId id, std::string spelling, std::string token_bytes) {
  spellings[static_cast<std::size_t>(id)] = std::move(spelling);
  bytes[static_cast<std::size_t>(id)] = std::move(token_bytes);
}

std::unique_ptr<Scratch> Tokenizer::Impl::take_scratch() const {
  {
    const std::lock_guard lock(pool_mutex);
    if (!pool.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(pool.back());
      pool.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::Impl::return_scratch(std::unique_ptr<Scratch> scratch) const {
  if (scratch->words.capacity() > kMaxPooledWords) scratch->words = {};
  const std::lock_guard lock(pool_mutex);
  if (pool.size() < kMaxPooledScratch) pool.push_back(std::move(scratch));
}

void Tokenizer::Impl::add_token(const AddedToken& token, std::string_view matched,
                                TokenOffsets offsets, Output& out) const {
  out.ids.push_back(token.id);
  if (!out.wants_offsets) return;
  out.offsets.push_back(offsets);
  out.spaces.push_back(count_edge_spaces(matched));
}

void Tokenizer::Impl::encode_section(AlignedText text, Scratch& scratch, Output& out) const {
  pre_tokenizer.split(text, scratch.words);
  const std::string_view view = text.view();
  for (const WordRange& word : scratch.words) {
    scratch.tokens.clear();
    bpe.encode_word(view.substr(word.begin, word.end - word.begin), scratch.bpe, scratch.tokens);
    std::size_t begin = word.begin;
    for (const BpeToken& token : scratch.tokens) {
      out.ids.push_back(token.id);
      if (!out.wants_offsets) continue;
      out.offsets.push_back(text.source_range(begin, begin + token.num_bytes));
      out.spaces.push_back(count_edge_spaces(spellings[static_cast<std::size_t>(token.id)]));
      begin += token.num_bytes;
    }
  }
}

// Second half of a section without original matches: normal form, then the tokens that are matched
// in it.
void Tokenizer::Impl::encode_normalized(AlignedText text, std::span<const ByteRange> runs,
                                        bool has_runs, bool match, Scratch& scratch,
                                        Output& out) const {
  for (const NormalForm form : normal_forms) normalize(form, text);
  if (!match || normalized_matcher.is_empty() || text.view().empty()) {
    encode_section(std::move(text), scratch, out);
    return;
  }
  std::vector<ByteRange> allowed;
  if (has_runs) {
    allowed = map_runs(text, runs);
  } else {
    allowed.push_back({0, text.view().size()});
  }
  std::vector<TextSection> sections;
  normalized_matcher.split(text.view(), allowed, sections);
  for (const TextSection& section : sections) {
    if (section.token < 0) {
      encode_section(text.slice(section.begin, section.end), scratch, out);
    } else {
      add_token(added_tokens[static_cast<std::size_t>(section.token)],
                text.view().substr(section.begin, section.end - section.begin),
                text.source_range(section.begin, section.end), out);
    }
  }
}

// Whether a section's ids follow from its text, wherever it stands: tokens that are matched in the
// normal form may depend on which bytes the template wrote.
bool Tokenizer::Impl::encodes_sections_alone(const EncodeOptions& options,
                                             const Output& out) const {
  return !out.wants_offsets && (!options.match_added_tokens || normalized_matcher.is_empty());
}

void Tokenizer::Impl::encode_alone(std::string_view text, std::span<const TextSection> sections,
                                   const EncodeOptions& options, Output& out) const {
  const bool may_cut = normal_forms.empty() && pre_tokenizer.can_cut_pieces();
  std::vector<TextPiece> pieces;
  for (const TextSection& section : sections) {
    const std::string_view part = text.substr(section.begin, section.end - section.begin);
    if (section.token >= 0) {
      pieces.push_back({part, added_tokens[static_cast<std::size_t>(section.token)].id});
    } else if (may_cut) {
      cut_into_pieces(part, pieces);
    } else {
      pieces.push_back({part});
    }
  }
  encode_pieces(
      pieces,
      [this](std::string_view piece, std::vector<TokenId>& piece_ids) {
        std::unique_ptr<Scratch> scratch = take_scratch();
        Output piece_out;
        encode_normalized(AlignedText(piece, 0), {}, false, false, *scratch, piece_out);
        piece_ids = std::move(piece_out.ids);
        return_scratch(std::move(scratch));
      },
      options, out.ids);
}

void Tokenizer::Impl::encode(std::string_view text, const ByteRange* runs, std::size_t num_runs,
                             const EncodeOptions& options, Output& out) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorCode::kTooLarge,
                fmt::format("text of {} bytes, accepted: up to {}", text.size(), kMaxTextBytes));
  }
  const bool has_runs = runs != nullptr;
  const ByteRange everything{0, text.size()};
  const std::span<const ByteRange> allowed =
      has_runs ? std::span(runs, num_runs) : std::span(&everything, 1);
  std::vector<TextSection> sections;
  if (options.match_added_tokens) {
    original_matcher.split(text, allowed, sections);
  } else if (!text.empty()) {
    sections.push_back({0, text.size(), -1});
  }
  if (encodes_sections_alone(options, out)) {
    encode_alone(text, sections, options, out);
    return;
  }
  std::unique_ptr<Scratch> scratch = take_scratch();
  for (const TextSection& section : sections) {
    const std::string_view part = text.substr(section.begin, section.end - section.begin);
    if (section.token < 0) {
      encode_normalized(AlignedText(part, static_cast<std::int64_t>(section.begin)), allowed,
                        has_runs, options.match_added_tokens, *scratch, out);
    } else {
      add_token(added_tokens[static_cast<std::size_t>(section.token)], part,
                {static_cast<std::int64_t>(section.begin), static_cast<std::int64_t>(section.end)},
                out);
    }
  }
  return_scratch(std::move(scratch));
}

void Tokenizer::Impl::post_process(const EncodeOptions& options, Output& out) const {
  for (const PostProcessorStep& step : post_processor) {
    if (step.kind == PostProcessorStep::Kind::kAddTokens) {
      if (!options.add_special_tokens) continue;
      out.ids.insert(out.ids.begin(), step.before.begin(), step.before.end());
      out.ids.insert(out.ids.end(), step.after.begin(), step.after.end());
      if (!out.wants_offsets) continue;
      out.offsets.insert(out.offsets.begin(), step.before.size(), TokenOffsets{});
      out.offsets.resize(out.ids.size());
      out.spaces.insert(out.spaces.begin(), step.before.size(), EdgeSpaces{});
      out.spaces.resize(out.ids.size());
      continue;
    }
    for (std::size_t i = 0; i < out.offsets.size(); ++i) {
      TokenOffsets& offsets = out.offsets[i];
      std::int64_t leading = out.spaces[i].leading;
      const std::int64_t trailing = out.spaces[i].trailing;
      const bool is_first = i == 0 || offsets.begin == 0;
      if (is_first && step.has_prefix_space && leading == 1) leading = 0;
      if (leading > 0) offsets.begin = std::min(offsets.begin + leading, offsets.end);
      if (trailing > 0 && offsets.end >= trailing) {
        offsets.end = std::max(offsets.end - trailing, offsets.begin);
      }
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  return from_json(read_file(file), file.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name) {
  return Tokenizer(std::make_unique<Impl>(parse_tokenizer_config(json, name)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  Output out;
  std::string replaced;
  if (well_formed_prefix(text) != text.size()) {
    replaced = replace_ill_formed(text);
    text = replaced;
  }
  impl_->encode(text, nullptr, 0, options, out);
  impl_->post_process(options, out);
  return std::move(out.ids);
}

std::vector<TokenId> Tokenizer::encode(std::span<const TextSegment> segments,
                                       const EncodeOptions& options) const {
  std::string text;
  std::vector<ByteRange> runs;
  for (const TextSegment& segment : segments) {
    const std::size_t begin = text.size();
    text.append(replace_ill_formed(segment.text));
    if (!segment.is_from_template || text.size() == begin) continue;
    if (!runs.empty() && runs.back().end == begin) {
      runs.back().end = text.size();
    } else {
      runs.push_back({begin, text.size()});
    }
  }
  Output out;
  // An empty list still means "match nowhere", so the pointer must not be null.
  static constexpr ByteRange kNone{0, 0};
  impl_->encode(text, runs.empty() ? &kNone : runs.data(), runs.size(), options, out);
  impl_->post_process(options, out);
  return std::move(out.ids);
}

Encoding Tokenizer::encode_with_offsets(std::string_view text, const EncodeOptions& options,
                                        OffsetUnit unit) const {
  Output out;
  out.wants_offsets = true;
  std::string replaced;
  if (well_formed_prefix(text) != text.size()) {
    replaced = replace_ill_formed(text);
    text = replaced;
  }
  impl_->encode(text, nullptr, 0, options, out);
  if (unit == OffsetUnit::kCharacters) {
    std::vector<std::int32_t> character_at(text.size() + 1);
    std::int32_t count = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      character_at[i] = count;
      const bool ends_character =
          i + 1 == text.size() || (static_cast<unsigned char>(text[i + 1]) & 0xC0) != 0x80;
      if (ends_character) ++count;
    }
    character_at[text.size()] = count;
    for (TokenOffsets& offsets : out.offsets) {
      offsets.begin = character_at[static_cast<std::size_t>(offsets.begin)];
      offsets.end = character_at[static_cast<std::size_t>(offsets.end)];
    }
  }
  impl_->post_process(options, out);
  return {std::move(out.ids), std::move(out.offsets)};
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (skip_special_tokens && is_special(id)) continue;
    bytes.append(token_bytes(id));
  }
  return well_formed_prefix(bytes) == bytes.size() ? bytes : replace_ill_formed(bytes);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->bytes[static_cast<std::size_t>(id)];
}

std::optional<std::string_view> Tokenizer::id_to_token(TokenId id) const {
  if (id < 0 || id >= vocab_size()) return std::nullopt;
  const std::string& spelling = impl_->spellings[static_cast<std::size_t>(id)];
  if (spelling.empty()) return std::nullopt;
  return spelling;
}

std::optional<TokenId> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = impl_->ids.find(token);
  if (found == impl_->ids.end()) return std::nullopt;
  return found->second;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->spellings.size()); }

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() &&
         (impl_->flags[static_cast<std::size_t>(id)] & Impl::kSpecial) != 0;
}

bool Tokenizer::is_added(TokenId id) const {
  return id >= 0 && id < vocab_size() &&
         (impl_->flags[static_cast<std::size_t>(id)] & Impl::kAdded) != 0;
}

std::vector<TokenId> Tokenizer::added_token_ids() const {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < vocab_size(); ++id) {
    if (is_added(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace winnow
