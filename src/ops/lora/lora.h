// What an adapter adds to a projection: y[t] += B · (s ∘ (A · x[t])) for the tokens that have one
// (LoRA). The base's matrix stays as it is stored.
//
// Numerics: u = A · x[t] as in linear.h; u[j] = u[j] · s[j], one rounding; d = B · u as in
// linear.h; y[t][n] += d[n], one addition, once y[t][n] holds what the projection wrote (or added)
// there. So a token's bits depend on its own row and adapter alone, and a token without one keeps
// its bits.
#pragma once

#include <cstdint>
#include <span>

#include "ops/linear/linear.h"

namespace winnow::ops {

/// A backend's own view of some sites, made once when their adapter is packed.
class LoraTable {
 public:
  virtual ~LoraTable() = default;
  virtual std::int64_t num_bytes() const = 0;
};

/// One pair: `b` makes rows [first_row, first_row + b->rows()) of the projection out of values
/// [first_rank, first_rank + b->cols()) of u.
struct LoraPart {
  const PackedMatrix* b = nullptr;  // [outputs][rank]
  std::int64_t first_rank = 0;
  std::int64_t first_row = 0;
};

/// One adapter at one (fused) projection. No two parts share a row or a value of u.
struct LoraSite {
  const PackedMatrix* a = nullptr;  // [Σ rank][inputs], every part's A; null: adds nothing
  const float* scales = nullptr;    // [Σ rank]
  std::span<const LoraPart> parts;
  const LoraTable* table = nullptr;  // of this site, where the backend makes one
};

/// One adapter in a feed-forward block.
struct LoraMlp {
  LoraSite gate_up;
  LoraSite down;
};

/// One adapter in a layer of experts.
struct LoraMoe {
  std::span<const LoraMlp> experts;  // [num_experts], or empty: none adds anything
  LoraMlp shared;
  // Of the sites of all experts by id, where the backend makes one; null: none adds anything.
  const LoraTable* gate_up = nullptr;
  const LoraTable* down = nullptr;
};

/// Which adapter each row of a call has.
template <typename Adapter>
struct LoraRows {
  const std::int32_t* adapter_of = nullptr;  // [rows]: index into `adapters`, or -1
  std::span<const Adapter* const> adapters;  // null: this one adds nothing here

  /// The adapter of a row; null: none.
  const Adapter* of(std::int64_t row) const {
    const std::int32_t index = adapter_of[row];
    return index < 0 ? nullptr : adapters[static_cast<std::size_t>(index)];
  }
  LoraRows from(std::int64_t row) const { return {adapter_of + row, adapters}; }
};

/// The operation alone, behind a projection that knows nothing of adapters.
struct LoraParams {
  LoraRows<LoraSite> rows = {};
  std::int64_t num_rows = 0;
  const float* x = nullptr;  // [num_rows][inputs], row stride x_stride
  std::int64_t x_stride = 0;
  float* y = nullptr;  // [num_rows][outputs], row stride y_stride; added to
  std::int64_t y_stride = 0;
};

}  // namespace winnow::ops
