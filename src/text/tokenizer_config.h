// What a tokenizer.json says, checked and translated: byte-level BPE as the o200k, GPT-2, Qwen and
// Llama-3 families write it. Anything outside is refused with its JSON path.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strong_id.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace winnow {

/// One step after the merges.
struct PostProcessorStep {
  enum class Kind { kTrimOffsets, kAddTokens };
  Kind kind;
  bool has_prefix_space = false;  // kTrimOffsets: the first space was added, not read
  std::vector<TokenId> before{};  // kAddTokens
  std::vector<TokenId> after{};
};

struct TokenizerConfig {
  std::vector<std::pair<std::string, TokenId>> vocab;  // spellings of the model's tokens
  std::vector<AddedToken> added_tokens;
  BpeConfig bpe;
  std::vector<NormalForm> normal_forms;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<PostProcessorStep> post_processor;
};

inline constexpr TokenId kMaxTokenId = (1 << 24) - 1;

/// `name` stands for the file in messages. Throws Error (kInvalidCheckpoint).
TokenizerConfig parse_tokenizer_config(std::string_view json, std::string_view name);

}  // namespace winnow
