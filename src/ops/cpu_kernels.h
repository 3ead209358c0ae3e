// What an operation of the CPU backend is handed besides its parameters: the kernels and codecs of
// one instruction set.
#pragma once

#include "base/machine.h"
#include "formats/bulk_codecs.h"
#include "ops/x86/kernel_table.h"

namespace winnow::cpu {

struct Kernels {
  const ops::KernelTable& table;
  const BulkCodecs& codecs;
};

/// Throws Error{kUnsupported} when this build or this machine lacks `isa`.
Kernels kernels_of(CpuIsa isa);

}  // namespace winnow::cpu
