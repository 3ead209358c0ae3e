// Pieces of exact::mlp() that exact::moe() is made of too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/lora/cuda_exact.h"
#include "ops/mlp/mlp.h"

struct CUstream_st;

namespace winnow::cuda::exact {

/// out[i] = (u + offset) · g · sigmoid(alpha · g) for `num_rows` rows of gates beside ups, as
/// mlp.h.
void activate(CUstream_st* stream, const float* gate_up, std::int64_t num_rows, std::int64_t width,
              ops::SwigluConstants constants, float* out);

/// The adapters of a block's two projections.
struct MlpAdapters {
  MlpAdapters() = default;
  /// Null: none.
  explicit MlpAdapters(const ops::LoraRows<ops::LoraMlp>* rows)
      : gate_up(rows, [](const ops::LoraMlp& mlp) { return mlp.gate_up.table; }),
        down(rows, [](const ops::LoraMlp& mlp) { return mlp.down.table; }) {}

  /// Values of u that a row needs room for; 0: nothing is added.
  std::int64_t rank() const { return std::max(gate_up.rank(), down.rank()); }

  LoraTables gate_up, down;
  std::int64_t first_token = 0;  // of theirs that a call starts with
};

/// Floats of device scratch that one token of a block of `width` takes.
inline std::int64_t mlp_token_floats(std::int64_t width, const MlpAdapters& adapters) {
  return 3 * width + adapters.rank();
}

/// mlp() with scratch for `chunk` tokens and with `adapters` instead of params.lora; resets
/// nothing.
void mlp_in(const ops::OpContext& context, const ops::MlpParams& params,
            const MlpAdapters& adapters, float* scratch, std::int64_t chunk);

}  // namespace winnow::cuda::exact
