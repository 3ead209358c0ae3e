#include "load/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "base/error.h"
#include "text/tokenizer.h"

namespace winnow::load {
namespace {

using nlohmann::json;

// The limits of `vllm bench serve`, so that runs on one file are of the same requests.
constexpr std::int64_t kMinTokens = 4;
constexpr std::int64_t kMaxPromptTokens = 1024;
constexpr std::int64_t kMaxTokens = 2048;
constexpr std::int64_t kCustomOutputTokens = 256;
constexpr std::int64_t kMaxOutputTokens = 1 << 30;  // of a file: what a server could be asked for
constexpr std::size_t kBytesPerToken = 4;           // of prose, where no tokenizer counts

/// One token each in the vocabularies of current models, with the space before.
constexpr std::array<std::string_view, 64> kWords = {
    " the",  " of",   " and",   " to",    " in",   " is",    " that", " for",   " it",   " was",
    " on",   " are",  " as",    " with",  " they", " at",    " be",   " this",  " have", " from",
    " or",   " one",  " had",   " by",    " word", " but",   " not",  " what",  " all",  " were",
    " we",   " when", " your",  " can",   " said", " there", " use",  " an",    " each", " which",
    " she",  " do",   " how",   " their", " if",   " will",  " up",   " other", " out",  " many",
    " then", " them", " these", " so",    " some", " her",   " make", " would", " like", " him",
    " into", " time", " has",   " look"};

/// Tokens of a space and ASCII letters: tokenizers split text at such spaces, so a row of them is
/// counted as it was made.
std::vector<std::string> words_of(const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return {kWords.begin(), kWords.end()};
  std::vector<std::string> out;
  for (TokenId id = 0; id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->id_to_token(id) || tokenizer->is_added(id)) continue;
    const std::string_view bytes = tokenizer->token_bytes(id);
    if (bytes.size() < 2 || bytes[0] != ' ') continue;
    const bool is_word = std::ranges::all_of(
        bytes.substr(1), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
    if (is_word && tokenizer->encode(bytes).size() == 1) out.emplace_back(bytes);
  }
  if (out.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "the tokenizer has no tokens of a space and letters",
                "leave --tokenizer out: prompts are then made of common words");
  }
  return out;
}

class WordSource {
 public:
  WordSource(const DatasetOptions& options)
      : words_(words_of(options.tokenizer)), bits_(options.seed) {}

  std::string text(std::int64_t num_tokens) {
    std::string out;
    std::uniform_int_distribution<std::size_t> pick(0, words_.size() - 1);
    for (std::int64_t i = 0; i < num_tokens; ++i) out += words_[pick(bits_)];
    return out;
  }
  std::int64_t length(std::int64_t middle, double range_ratio) {
    const auto ends = static_cast<double>(middle);
    const auto low = static_cast<std::int64_t>(std::floor(ends * (1 - range_ratio)));
    const auto high = static_cast<std::int64_t>(std::ceil(ends * (1 + range_ratio)));
    return std::max<std::int64_t>(1, std::uniform_int_distribution(low, high)(bits_));
  }

 private:
  std::vector<std::string> words_;
  std::mt19937_64 bits_;
};

std::int64_t count_tokens(const Tokenizer* tokenizer, const std::string& text) {
  if (tokenizer != nullptr) return std::ssize(tokenizer->encode(text));
  return static_cast<std::int64_t>((text.size() + kBytesPerToken - 1) / kBytesPerToken);
}

std::ifstream open(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kIo, fmt::format("--dataset-path {}: cannot be read", path.string()));
  }
  return file;
}

/// The text of turn `index`; nothing when the entry has another form.
const std::string* turn_text(const json& entry, std::size_t index) {
  if (!entry.is_object()) return nullptr;
  const auto turns = entry.find("conversations");
  if (turns == entry.end() || !turns->is_array() || turns->size() <= index) return nullptr;
  const json& turn = (*turns)[index];
  if (!turn.is_object()) return nullptr;
  const auto value = turn.find("value");
  if (value == turn.end()) return nullptr;
  return value->get_ptr<const std::string*>();
}

/// A file with fewer prompts than asked for is gone through again.
std::vector<Prompt> repeated(std::vector<Prompt> prompts, std::size_t count) {
  const std::size_t size = prompts.size();
  prompts.reserve(count);
  for (std::size_t i = size; i < count; ++i) prompts.push_back(prompts[i % size]);
  return prompts;
}

}  // namespace

std::vector<Prompt> make_prompts(const DatasetOptions& options, const MadeOptions& made) {
  WordSource words(options);
  std::vector<std::string> prefixes;
  for (std::int64_t i = 0; i < made.num_prefixes; ++i) {
    prefixes.push_back(words.text(made.prefix_len));
  }
  std::vector<Prompt> out(options.num_prompts);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t length = words.length(made.input_len, made.range_ratio);
    out[i].output_tokens = words.length(made.output_len, made.range_ratio);
    out[i].text = prefixes[i % prefixes.size()] + words.text(length);
    out[i].num_tokens = made.prefix_len + length;
  }
  return out;
}

std::vector<Prompt> read_sharegpt(const DatasetOptions& options, const FileOptions& file) {
  std::ifstream stream = open(file.path);
  const json entries = json::parse(stream, nullptr, false);
  if (!entries.is_array()) {
    throw Error(
        ErrorCode::kInvalidJson,
        fmt::format("--dataset-path {}: not a JSON array of conversations", file.path.string()));
  }
  std::vector<std::size_t> order(entries.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::mt19937_64 bits(options.seed);
  std::shuffle(order.begin(), order.end(), bits);
  std::vector<Prompt> out;
  for (const std::size_t index : order) {
    if (out.size() == options.num_prompts) break;
    const std::string* asked = turn_text(entries[index], 0);
    const std::string* answered = turn_text(entries[index], 1);
    if (asked == nullptr || answered == nullptr) continue;
    Prompt prompt{*asked, count_tokens(options.tokenizer, *asked), 0};
    prompt.output_tokens =
        file.output_len ? *file.output_len : count_tokens(options.tokenizer, *answered);
    const bool is_short =
        prompt.num_tokens < kMinTokens || (!file.output_len && prompt.output_tokens < kMinTokens);
    const bool is_long = prompt.num_tokens > kMaxPromptTokens ||
                         prompt.num_tokens + prompt.output_tokens > kMaxTokens;
    if (!is_short && !is_long) out.push_back(std::move(prompt));
  }
  if (out.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--dataset-path {}: none of its {} entries is a conversation of usable "
                            "length",
                            file.path.string(), entries.size()),
                "each needs \"conversations\" with two turns that have a \"value\"");
  }
  return repeated(std::move(out), options.num_prompts);
}

std::vector<Prompt> read_custom(const DatasetOptions& options, const FileOptions& file) {
  std::ifstream stream = open(file.path);
  std::vector<Prompt> out;
  std::string line;
  for (std::size_t number = 1; out.size() < options.num_prompts && std::getline(stream, line);
       ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto fail = [&](std::string_view what) {
      throw Error(ErrorCode::kInvalidJson,
                  fmt::format("--dataset-path {}, line {}: {}", file.path.string(), number, what));
    };
    const json entry = json::parse(line, nullptr, false);
    if (!entry.is_object()) fail("not a JSON object");
    const auto text = entry.find("prompt");
    if (text == entry.end() || !text->is_string()) fail("\"prompt\" is not a string");
    Prompt prompt{text->get<std::string>(), 0, file.output_len.value_or(kCustomOutputTokens)};
    const auto length = entry.find("output_tokens");
    if (length != entry.end() && !file.output_len) {
      // Through a double: an integer may be too large for ours.
      const double value = length->is_number() ? length->get<double>() : 0;
      if (!(value >= 1 && value <= kMaxOutputTokens)) fail("\"output_tokens\" is not a count");
      prompt.output_tokens = static_cast<std::int64_t>(value);
    }
    prompt.num_tokens = count_tokens(options.tokenizer, prompt.text);
    out.push_back(std::move(prompt));
  }
  if (out.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--dataset-path {}: no prompts in it", file.path.string()));
  }
  return repeated(std::move(out), options.num_prompts);
}

}  // namespace winnow::load
