// What this instruction set gets from memory and from its multipliers: what other measurements are
// ratios of.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

/// Of one step of MemoryKernels::multiply_add: twelve vectors.
inline constexpr int64_t kMultiplyAddsPerStep = 12 * 16;

struct MemoryKernels {
  /// Reads num_bytes (a multiple of 256) and returns a value that depends on all of them.
  uint32_t (*read)(const void* data, int64_t num_bytes);
  /// Independent fused multiply-adds on registers.
  float (*multiply_add)(int64_t num_steps);
};

namespace avx512 {
extern const MemoryKernels kMemoryKernels;
}
namespace avx2 {
extern const MemoryKernels kMemoryKernels;
}
namespace portable {
extern const MemoryKernels kMemoryKernels;
}

}  // namespace winnow::ops
