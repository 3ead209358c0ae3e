// Sixteen floats, on every instruction set: one register of AVX-512, two of AVX2, an array
// otherwise. Kernels are written once on these and the same operations in the same order give the
// same bits everywhere.
#pragma once

#include "ops/x86/isa.h"

#if defined(WINNOW_ISA_AVX512)
#include "ops/x86/vec_avx512.h"
#elif defined(WINNOW_ISA_AVX2)
#include "ops/x86/vec_avx2.h"
#else
#include "ops/x86/vec_portable.h"
#endif
#include "ops/x86/vec_exp.h"
