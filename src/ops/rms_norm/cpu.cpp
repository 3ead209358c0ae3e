#include "ops/cpu_ops.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/run_tasks.h"

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
  ops::run_tasks(context, params.num_rows, params.num_rows * params.width >= kParallelValues, run);
}

}  // namespace winnow::cpu
