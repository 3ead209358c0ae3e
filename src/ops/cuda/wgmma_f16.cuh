// 16-bit wgmma with fp32 accumulators. A: 64 rows, from shared memory or from registers in the
// fragment order of mma.m16n8k16 (warp w of the warpgroup holds rows 16w to 16w + 15). B: from
// shared memory through a descriptor. Accumulator d[4j + i] of a lane: row lane / 4 (+ 8 for i ≥
// 2), column 8j + 2 (lane % 4)
// (+ 1 for odd i).
#pragma once

#include <cstdint>

#include "ops/cuda/ptx_sm90.cuh"

namespace winnow::cuda::ptx {

/// Descriptor of an operand in the 128-byte swizzle whose 8-row groups are `group_bytes` apart.
/// MN-major operands also take `column_bytes`, the distance of their 64-element columns.
__device__ __forceinline__ std::uint64_t swizzled_descriptor(std::uint32_t address,
                                                             std::uint32_t group_bytes,
                                                             std::uint32_t column_bytes = 16) {
  return std::uint64_t{(address & 0x3FFFF) >> 4} | std::uint64_t{column_bytes >> 4} << 16 |
         std::uint64_t{group_bytes >> 4} << 32 | std::uint64_t{1} << 62;
}

// The instruction with its 64 accumulators; `a` is operand text, `last` the number of the
// predicate.
#define WINNOW_WGMMA_M64N128K16(types, a, last, modifiers, ...)                                \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" last                                       \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." types                            \
               " {"                                                                            \
               "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                        \
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"              \
               "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"              \
               "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"               \
               "}, " a ", p, 1, 1, " modifiers ";\n}\n"                                        \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),       \
                 "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),     \
                 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
                 "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
                 "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
                 "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
                 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
                 "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
                 "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                            \
               : __VA_ARGS__)

/// d (64 × 128) = A · B, plus d when `accumulates`. kTransposesB: B lies with N contiguous.
template <bool kIsBf16, bool kTransposesB>
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], const std::uint32_t (&a)[4],
                                                 std::uint64_t b, int accumulates) {
#define WINNOW_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulates)
#define WINNOW_A "{%64,%65,%66,%67}, %68"
  if constexpr (kIsBf16 && kTransposesB) {
    WINNOW_WGMMA_M64N128K16("bf16.bf16", WINNOW_A, "69", "1", WINNOW_OPERANDS);
  } else if constexpr (kIsBf16) {
    WINNOW_WGMMA_M64N128K16("bf16.bf16", WINNOW_A, "69", "0", WINNOW_OPERANDS);
  } else if constexpr (kTransposesB) {
    WINNOW_WGMMA_M64N128K16("f16.f16", WINNOW_A, "69", "1", WINNOW_OPERANDS);
  } else {
    WINNOW_WGMMA_M64N128K16("f16.f16", WINNOW_A, "69", "0", WINNOW_OPERANDS);
  }
#undef WINNOW_A
#undef WINNOW_OPERANDS
}

/// The same with A from shared memory, both operands K-major.
template <bool kIsBf16>
__device__ __forceinline__ void wgmma_m64n128k16(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                                 int accumulates) {
  if constexpr (kIsBf16) {
    WINNOW_WGMMA_M64N128K16("bf16.bf16", "%64, %65", "66", "0, 0", "l"(a), "l"(b),
                            "r"(accumulates));
  } else {
    WINNOW_WGMMA_M64N128K16("f16.f16", "%64, %65", "66", "0, 0", "l"(a), "l"(b), "r"(accumulates));
  }
}

#undef WINNOW_WGMMA_M64N128K16

/// Descriptor of an operand without a swizzle: core matrices of 8 rows × 16 bytes, `along_k` bytes
/// apart in k and `along_n` in the rows' direction.
__device__ __forceinline__ std::uint64_t core_matrix_descriptor(std::uint32_t address,
                                                                std::uint32_t along_k,
                                                                std::uint32_t along_n) {
  return std::uint64_t{(address & 0x3FFFFU) >> 4} | std::uint64_t{along_k >> 4} << 16 |
         std::uint64_t{along_n >> 4} << 32;
}

/// d (64 × 32) = A · B, plus d when it accumulates; halves.
__device__ __forceinline__ void wgmma_m64n32k16_f16(float (&d)[16], const std::uint32_t (&a)[4],
                                                    std::uint64_t b, bool accumulates) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0; "
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
}

}  // namespace winnow::cuda::ptx
