// Pieces of exact::mlp() that exact::moe() is made of too.
#pragma once

#include <cstdint>

#include "ops/mlp/mlp.h"

struct CUstream_st;

namespace winnow::cuda::exact {

/// out[i] = (u + offset) · g · sigmoid(alpha · g) for `num_rows` rows of gates beside ups, as
/// mlp.h.
void activate(CUstream_st* stream, const float* gate_up, std::int64_t num_rows, std::int64_t width,
              ops::SwigluConstants constants, float* out);

/// Bytes of device scratch that one token of a block of `width` takes.
constexpr std::int64_t mlp_token_bytes(std::int64_t width) {
  return 3 * width * static_cast<std::int64_t>(sizeof(float));
}

/// mlp() with scratch for `chunk` tokens, [chunk][3 · width]; resets nothing.
void mlp_in(const ops::OpContext& context, const ops::MlpParams& params, float* scratch,
            std::int64_t chunk);

}  // namespace winnow::cuda::exact
