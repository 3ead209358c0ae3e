#include "ops/cpu_ops.h"
#include "ops/op_context.h"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::cpu {
namespace {

/// Below this many values (some µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelValues = 32 * 1024;

}  // namespace

void rms_norm(const Kernels& kernels, const ops::OpContext& context,
              const ops::RmsNormParams& params) {
  const auto run = [&](std::int64_t row, int) {
    kernels.table.norm->rms_norm_row(params.x + row * params.width, params.weight, params.offset,
                                     params.eps, params.width, params.out + row * params.width);
  };
  if (params.num_rows * params.width < kParallelValues) {
    for (std::int64_t row = 0; row < params.num_rows; ++row) run(row, 0);
  } else {
    context.pool->parallel_for(params.num_rows, run);
  }
}

}  // namespace winnow::cpu
