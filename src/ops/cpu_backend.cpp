// The CPU backend: the same operations on the kernels of one instruction set.
#include <fmt/format.h>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/cpu_ops.h"
#include "ops/linear/cpu_linear.h"
#include "ops/scalar_ops.h"

namespace winnow::cpu {
namespace {

const ops::KernelTable* table_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return &ops::portable::kKernels;
#if defined(WINNOW_HAS_X86_KERNELS)
    case CpuIsa::kAvx2:
      return &ops::avx2::kKernels;
    case CpuIsa::kAvx512:
      return &ops::avx512::kKernels;
#endif
    default:
      return nullptr;
  }
}

/// A Backend holds plain functions, so each instruction set has its own set of these.
template <CpuIsa isa, auto operation>
struct Bound;
template <CpuIsa isa, typename Params,
          void (*operation)(const Kernels&, const ops::OpContext&, const Params&)>
struct Bound<isa, operation> {
  static void run(const ops::OpContext& context, const Params& params) {
    operation({.table = *table_of(isa), .codecs = bulk_codecs(isa)}, context, params);
  }
};

template <CpuIsa isa>
ops::Backend backend_of() {
  return {.name = fmt::format("cpu-{}", cpu_isa_name(isa)),
          .machine = {},
          .memory = ops::make_host_memory(),
          .staging = {},
          .cuda = nullptr,
          .pack = pack,
          .make_random = {},
          .bind_experts = {},
          .bind_lora = {},
          .reserve = {},
          .run_step = {},
          .keep_rows = scalar::keep_rows,
          .embed = Bound<isa, embed>::run,
          .rms_norm = Bound<isa, rms_norm>::run,
          .linear = Bound<isa, linear>::run,
          .lora = Bound<isa, lora>::run,
          .qkv_insert = Bound<isa, qkv_insert>::run,
          .index_topk = Bound<isa, index_topk>::run,
          .attention = Bound<isa, attention>::run,
          .mlp = Bound<isa, mlp>::run,
          .moe = Bound<isa, moe>::run,
          .draft_insert = Bound<isa, draft_insert>::run,
          .draft_heads = Bound<isa, draft_heads>::run,
          .draft_attention = Bound<isa, draft_attention>::run};
}

}  // namespace

Kernels kernels_of(CpuIsa isa) {
  const ops::KernelTable* const table = table_of(isa);
  if (table == nullptr || isa > detect_machine().best_isa) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} has no {} kernels",
                            table == nullptr ? "this build" : "this machine", cpu_isa_name(isa)),
                "use --backend auto");
  }
  return {.table = *table, .codecs = bulk_codecs(isa)};
}

}  // namespace winnow::cpu

namespace winnow::ops {

Backend make_cpu_backend(CpuIsa isa) {
  cpu::kernels_of(isa);
  switch (isa) {
    case CpuIsa::kAvx512:
      return cpu::backend_of<CpuIsa::kAvx512>();
    case CpuIsa::kAvx2:
      return cpu::backend_of<CpuIsa::kAvx2>();
    default:
      return cpu::backend_of<CpuIsa::kPortable>();
  }
}

}  // namespace winnow::ops
