// Prompts to send: made of words, or read from files that anybody may have written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace winnow {
class Tokenizer;
}

namespace winnow::load {

struct Prompt {
  std::string text;
  std::int64_t num_tokens = 0;  // by the tokenizer, else an estimate; the server's count wins
  std::int64_t output_tokens = 0;
};

/// Made prompts: `num_prefixes` beginnings of `prefix_len` tokens that requests share in turn, then
/// tokens of their own.
struct MadeOptions {
  std::int64_t input_len = 1024;
  std::int64_t output_len = 128;
  double range_ratio = 0;  // lengths are uniform in [len · (1 - r), len · (1 + r)]; below 1
  std::int64_t prefix_len = 0;
  std::int64_t num_prefixes = 1;
};

struct FileOptions {
  std::filesystem::path path;
  std::optional<std::int64_t> output_len;  // for all requests, instead of the file's
};

struct DatasetOptions {
  std::size_t num_prompts = 1000;
  std::uint64_t seed = 0;
  const Tokenizer* tokenizer = nullptr;  // none: made words of about a token, lengths estimated
};

/// Words that are one token each. Throws Error{kInvalidArgument} for a tokenizer without such
/// words.
std::vector<Prompt> make_prompts(const DatasetOptions& options, const MadeOptions& made);

/// [{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}, …]}, …]: the
/// first two turns of conversations drawn at random; too short (under 4 tokens) and too long ones
/// (prompt over 1,024, both over 2,048) are left out, as in `vllm bench serve`. Entries of another
/// form are skipped. Throws Error{kIo, kInvalidJson, kInvalidArgument} naming the file.
std::vector<Prompt> read_sharegpt(const DatasetOptions& options, const FileOptions& file);

/// A line each: {"prompt": …, "output_tokens": …}, in the file's order, again from the start when
/// it is short. The second member may be missing (256). Throws as above, with the line.
std::vector<Prompt> read_custom(const DatasetOptions& options, const FileOptions& file);

}  // namespace winnow::load
