// Texts that a model wrote, and what it computed over them: what a drafter is trained on
// (spec/speculative.md 9). The residual streams come out of the same forward pass that serves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

class Decoder;

struct CapturedText {
  std::vector<TokenId> tokens;  // prompt and answer
  std::int32_t num_prompt = 0;  // of tokens
};

/// One *.safetensors of `tokens` I32 [all], `starts` I64 [texts + 1] and `num_prompt` I32 [texts].
/// Throws Error{kIo}.
void write_texts(std::span<const CapturedText> texts, const std::filesystem::path& path);

/// Throws Error{kInvalidCheckpoint} for a file that write_texts() would not write: other shapes,
/// starts that do not rise, a prompt longer than its text, tokens outside the vocabulary.
std::vector<CapturedText> read_texts(const std::filesystem::path& path, std::int32_t vocab_size);

/// The same file with `streams.{layer}` BF16 [all][hidden_size] for each of `layers`, which are the
/// decoder's captured ones. Texts run whole where they fit into a step of `step_tokens`, in chunks
/// otherwise. Gives the decoder a pool of its own: what was cached is forgotten.
void write_streams(Decoder& decoder, std::span<const std::int32_t> layers,
                   std::span<const CapturedText> texts, std::int32_t step_tokens,
                   const std::filesystem::path& path);

}  // namespace winnow
