// Two inputs in one: bytes before the first NUL are a tokenizer.json (none: one of the known
// families with a byte vocabulary, chosen by the first byte), the rest is text to encode. Checks
// that nothing crashes and that the promises of text/tokenizer.h hold.
#include <unicode/uchar.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/split_regex.h"
#include "text/split_scanner.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using Json = nlohmann::json;

winnow::Tokenizer known_family(std::size_t index) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[winnow::spelling_of_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  Json merges = Json::array();
  const auto merge = [&](const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    vocab[left + right] = static_cast<int>(vocab.size());
  };
  merge("a", "a");
  merge("aa", "aa");
  merge("Ġ", "a");
  merge("]", "<");
  merge("Ġ", "Ġ");
  Json added = Json::array();
  for (const char* content : {"[e~[", "]<]minimax[>[", "]~b]", "<mm:think>"}) {
    added.push_back({{"id", 261 + static_cast<int>(added.size())},
                     {"content", content},
                     {"special", added.size() % 2 == 0},
                     {"lstrip", added.size() == 2},
                     {"rstrip", added.size() == 3},
                     {"single_word", added.size() == 1},
                     {"normalized", added.size() == 3}});
  }
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", winnow::SplitScanner::expression(index)}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  const Json root = {{"added_tokens", added},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                     {"post_processor", {{"type", "ByteLevel"}, {"trim_offsets", true}}},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return winnow::Tokenizer::from_json(root.dump());
}

// PCRE2 10.42 has Unicode 14, ICU 72 has Unicode 15: their classes differ for what came between.
bool has_character_newer_than_pcre2(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    const winnow::Utf8Step step = winnow::step_utf8(text, i);
    UVersionInfo age;
    u_charAge(static_cast<UChar32>(step.code_point), age);
    if (age[0] > 14) return true;
    i += step.num_bytes;
  }
  return false;
}

void check_streaming(const winnow::Tokenizer& tokenizer, const std::vector<winnow::TokenId>& ids) {
  winnow::Detokenizer detokenizer(tokenizer, {.skip_special_tokens = false});
  std::string streamed;
  for (const winnow::TokenId id : ids) streamed += detokenizer.add(id);
  streamed += detokenizer.finish();
  WINNOW_ASSERT(streamed == tokenizer.decode(ids, false), "streaming equals decoding");
}

void check_known(std::size_t index, std::string_view bytes) {
  static const std::vector<winnow::Tokenizer>* const tokenizers = [] {
    auto* made = new std::vector<winnow::Tokenizer>;
    for (std::size_t i = 0; i < winnow::SplitScanner::num_expressions(); ++i) {
      made->push_back(known_family(i));
    }
    return made;
  }();
  const winnow::Tokenizer& tokenizer = (*tokenizers)[index];
  const std::string text = winnow::replace_ill_formed(bytes);
  const std::vector<winnow::TokenId> plain = tokenizer.encode(bytes, {.match_added_tokens = false});
  WINNOW_ASSERT(tokenizer.decode(plain, false) == text, "bytes survive a round trip");
  const winnow::Encoding encoding = tokenizer.encode_with_offsets(bytes);
  WINNOW_ASSERT(encoding.ids == tokenizer.encode(bytes), "offsets do not change ids");
  const auto count = static_cast<std::int64_t>(winnow::count_characters(text));
  for (const winnow::TokenOffsets& range : encoding.offsets) {
    WINNOW_ASSERT(range.begin >= 0 && range.begin <= range.end && range.end <= count,
                  "offsets lie in the text", range.begin, range.end, count);
  }
  const std::size_t half = text.size() / 2;
  const std::vector<winnow::TextSegment> values = {{text.substr(0, half), false},
                                                   {text.substr(half), false}};
  for (const winnow::TokenId id : tokenizer.encode(values)) {
    WINNOW_ASSERT(!tokenizer.is_added(id), "values hold no added token", id);
  }
  check_streaming(tokenizer, encoding.ids);

  static const std::vector<winnow::SplitRegex>* const expressions = [] {
    auto* made = new std::vector<winnow::SplitRegex>;
    for (std::size_t i = 0; i < winnow::SplitScanner::num_expressions(); ++i) {
      made->emplace_back(winnow::SplitScanner::expression(i));
    }
    return made;
  }();
  const auto scanner =
      *winnow::SplitScanner::for_expression(winnow::SplitScanner::expression(index));
  if (has_character_newer_than_pcre2(text)) return;
  std::vector<winnow::SplitMatch> matches;
  (*expressions)[index].split(text, matches);
  std::size_t position = 0;
  for (const winnow::SplitMatch& match : matches) {
    WINNOW_ASSERT(match.begin == position, "matches cover the text");
    position = scanner.match_end(text, match.begin);
    WINNOW_ASSERT(match.end == position, "scanner equals expression", match.begin);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = input.find('\0');
  if (nul == std::string_view::npos) {
    if (size > 0) check_known(data[0] % winnow::SplitScanner::num_expressions(), input.substr(1));
    return 0;
  }
  try {
    const winnow::Tokenizer tokenizer =
        winnow::Tokenizer::from_json(input.substr(0, nul), "tokenizer.json");
    const std::string_view text = input.substr(nul + 1);
    const winnow::Encoding encoding =
        tokenizer.encode_with_offsets(text, {.add_special_tokens = true});
    WINNOW_ASSERT(encoding.ids.size() == encoding.offsets.size(), "one range per id");
    check_streaming(tokenizer, encoding.ids);
  } catch (const winnow::Error&) {
    // Refused with a message, which is what a bad file should get.
  }
  return 0;
}
