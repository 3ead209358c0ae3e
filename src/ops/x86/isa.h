// The kernel sources (*_kernel.cpp) are compiled once per instruction set, each time with one of
// WINNOW_ISA_AVX512, WINNOW_ISA_AVX2 or WINNOW_ISA_PORTABLE defined, into a namespace of that name.
//
// Rule for these sources: no header with inline functions of external linkage (nothing from the
// standard library but <stdint.h> and the like). An inline function built with AVX-512 could be the
// copy that the linker keeps for everyone, and then crash on a smaller machine. kernel_symbols_test
// reads the object files and fails on any such symbol.
#pragma once

#include <stddef.h>  // NOLINT(modernize-deprecated-headers)
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#if defined(WINNOW_ISA_AVX512)
#define WINNOW_ISA avx512
#elif defined(WINNOW_ISA_AVX2)
#define WINNOW_ISA avx2
#elif defined(WINNOW_ISA_PORTABLE)
#define WINNOW_ISA portable
#else
#error "kernel sources are compiled by ops/cpu_kernels.cmake, which defines the instruction set"
#endif

#define WINNOW_INLINE [[gnu::always_inline]] static inline

/// Before a loop over registers: it must vanish, or they live in memory. A sanitizer's build keeps
/// the loops, as a check at every unrolled load takes the compiler minutes.
#if defined(WINNOW_KEEP_LOOPS)
#define WINNOW_UNROLL
#else
#define WINNOW_UNROLL _Pragma("GCC unroll 32")
#endif
