// out[t] = table[tokens[t · token_stride]] widened to fp32; no scaling (spec/model.md 3.1).
#pragma once

#include <cstdint>

#include "formats/quant_scheme.h"

namespace winnow::ops {

struct EmbedParams {
  /// [num_tokens], token_stride apart; each in [0, vocab_size): checked by the caller.
  const std::int32_t* tokens = nullptr;
  std::int64_t token_stride = 1;
  std::int64_t num_tokens = 0;
  const void* table = nullptr;  // [vocab_size][hidden], F32 or BF16
  QuantScheme table_scheme = QuantScheme::kBF16;
  std::int64_t hidden = 0;
  float* out = nullptr;  // [num_tokens][hidden]
};

}  // namespace winnow::ops
