// What one instruction set offers: plain functions on plain structs, called by the ordinary code of
// */cpu.cpp, which does the partition into tasks, the scratch and everything else that is not hot.
#pragma once

#include "ops/attention/cpu_kernel.h"
#include "ops/index_topk/cpu_kernel.h"
#include "ops/linear/cpu_kernel.h"
#include "ops/mlp/cpu_kernel.h"
#include "ops/rms_norm/cpu_kernel.h"
#include "ops/x86/memory_kernel.h"

namespace winnow::ops {

/// Constant data, so that nothing of an instruction set runs before it is chosen.
struct KernelTable {
  const LinearKernels* linear;
  const NormKernels* norm;
  const MlpKernels* mlp;
  const AttentionKernels* attention;
  const IndexKernels* index;
  const MemoryKernels* memory;
};

namespace avx512 {
extern const KernelTable kKernels;
}
namespace avx2 {
extern const KernelTable kKernels;
}
namespace portable {
extern const KernelTable kKernels;
}

}  // namespace winnow::ops
