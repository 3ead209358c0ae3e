#include "ops/x86/kernel_table.h"

#include "ops/x86/isa.h"

namespace winnow::ops::WINNOW_ISA {

extern const KernelTable kKernels = {.linear = &kLinearKernels,
                                     .norm = &kNormKernels,
                                     .mlp = &kMlpKernels,
                                     .attention = &kAttentionKernels,
                                     .index = &kIndexKernels,
                                     .memory = &kMemoryKernels};

}  // namespace winnow::ops::WINNOW_ISA
