// Feed-forward blocks on the CPU kernels: what mlp and moe share.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu_kernels.h"
#include "ops/mlp/mlp.h"
#include "ops/op_context.h"

namespace winnow::cpu {

/// Runs independent blocks together: all first products under one barrier, then the activations,
/// then all second products. Takes scratch and does not reset it.
void run_blocks(const Kernels& kernels, const ops::OpContext& context,
                std::span<const ops::MlpParams> blocks);

}  // namespace winnow::cpu
