// What every backend checks and asks of the matrices it packs.
#pragma once

#include <cstdint>
#include <span>

#include "ops/linear/linear.h"

namespace winnow::ops {

/// Columns that share one partial sum: 32, or 16 for NVFP4 (linear.h).
std::int64_t group_columns(QuantScheme scheme);

/// Whether the scheme stores a scale per group.
bool has_scales(QuantScheme scheme);

/// Rows of the whole stack.
std::int64_t stacked_rows(std::span<const MatrixSource> stacked);

/// Throws Error{kInvalidCheckpoint} on an empty stack, unequal or non-positive sizes, columns that
/// are not whole groups of a scaled scheme, or missing data.
void check_sources(std::span<const MatrixSource> stacked);

}  // namespace winnow::ops
