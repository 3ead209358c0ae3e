// Passes over one row of logits, compiled once per instruction set and chosen at start. They use
// only exact or singly rounded IEEE operations in a written order, so all of them give the same
// bits; the wider ones are faster.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/machine.h"
#include "base/strong_id.h"

namespace winnow {

struct RowScan {
  float max = 0.0F;     // -inf when every logit is
  TokenId argmax = 0;   // the lowest id among equals
  bool is_bad = false;  // a NaN or +inf somewhere: max and argmax mean nothing
};

/// Tokens looked at together by a draw over a whole row.
inline constexpr std::size_t kDrawTile = 256;
using DrawTile = std::array<std::uint32_t, kDrawTile>;

struct RowKernels {
  RowScan (*scan)(std::span<const float> logits);
  /// Σ e^((logit - max) / T), inverse_temperature = 1 / T, in an order that depends on the size
  /// alone; at least 1 when max is the row's.
  double (*sum_weights)(std::span<const float> logits, float max, float inverse_temperature);
  /// weights[i] = e^((logits[i] - max) / T).
  void (*fill_weights)(std::span<const float> logits, float max, float inverse_temperature,
                       std::span<float> weights);
  /// Tokens ahead of `token`: higher logit, or equal logit and lower id.
  std::int32_t (*count_ahead)(std::span<const float> logits, TokenId token);
  /// numbers[4 g + j] = philox4x32(seed, {first_group + g, a, b, c})[j].
  void (*fill_numbers)(std::uint64_t seed, std::uint32_t first_group,
                       const std::array<std::uint32_t, 3>& abc, DrawTile& numbers);
};

/// Those of one instruction set, which this CPU must have.
const RowKernels& row_kernels(CpuIsa isa);
/// Those of the best one.
const RowKernels& row_kernels();

}  // namespace winnow
