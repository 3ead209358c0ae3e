// The next token of rows of logits, chosen where the logits are: a token instead of a row crosses
// to the host. Bit for bit what the engine's sampler (engine/sample/sampler.h) chooses from the
// same row; offered by devices only.
#pragma once

#include <cstdint>

#include "base/strong_id.h"

namespace winnow::ops {

/// Token ids of the largest vocabulary that sample() takes have this many bits.
inline constexpr int kSampleIdBits = 18;
inline constexpr std::int32_t kMaxSampleVocab = std::int32_t{1} << kSampleIdBits;

/// How one token is to be drawn. Several may be drawn from one row.
struct Draw {
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::uint32_t position = 0;        // of the last token before the drawn one
  float inverse_temperature = 1.0F;  // 1 / temperature
  float top_p = 1.0F;                // ≥ 1: off
  float min_p = 0.0F;                // lightest weight that takes part; the heaviest is 1
  std::int32_t top_k = 0;            // ≤ 0 or ≥ the vocabulary: off
  std::int32_t row = -1;             // of logits; -1: nothing is drawn
  std::int32_t mask = -1;            // of the banned tokens; -1: none
  std::int32_t is_greedy = 0;        // 1: the highest logit, lowest id among equals
};

enum class DrawStatus : std::int32_t {
  kOk,
  kCorruptLogits,   // a NaN or +inf, or nothing but -inf
  kNothingAllowed,  // every token is banned or -inf
};

struct Drawn {
  DrawStatus status = DrawStatus::kOk;
  TokenId token = 0;
};

/// Words of one mask: bit t % 32 of word t / 32 is set when token t is banned.
constexpr std::int64_t mask_words(std::int64_t vocab_size) { return (vocab_size + 31) / 32; }

/// out[i] = the token of draws[i], from row draws[i].row - first_row of `logits`. Weights are
/// e^((logit - max) / T). In this order: bans, top-k, top-p of what top-k left, min-p, one draw by
/// exponential race (engine/sample/draw.h). Order of tokens: higher logit, then lower id.
struct SampleParams {
  const float* logits = nullptr;  // [rows][vocab_size]
  std::int32_t vocab_size = 0;    // ≤ kMaxSampleVocab
  std::int32_t first_row = 0;     // what `logits` begins with
  const Draw* draws = nullptr;    // [num_draws]
  std::int32_t num_draws = 0;
  const std::uint32_t* masks = nullptr;  // [masks][mask_words(vocab_size)]
  Drawn* out = nullptr;                  // [num_draws]; untouched where nothing is drawn
};

}  // namespace winnow::ops
