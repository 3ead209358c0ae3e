// wgmma with bf16 operands and as many columns as a tile has tokens: A, 64 rows, from registers in
// the fragment order of mma.m16n8k16 (warp w of the warpgroup holds rows 16w to 16w + 15), B from
// shared memory, K contiguous. Accumulators as in wgmma_f16.cuh.
#pragma once

#include <cstdint>

#include "ops/cuda/wgmma_f16.cuh"

namespace winnow::cuda {

/// d (64 × kColumns) = A · B, plus d when `accumulates`; d may have room for more columns.
/// Asynchronous: PTX ISA, wgmma.
template <int kColumns>
struct Wgmma;

#define WINNOW_FOUR(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])

template <>
struct Wgmma<32> {
  template <int kRoom>
  __device__ static __forceinline__ void run(float (&d)[kRoom], const std::uint32_t (&a)[4],
                                             std::uint64_t b, bool accumulates) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
        : WINNOW_FOUR(0), WINNOW_FOUR(4), WINNOW_FOUR(8), WINNOW_FOUR(12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
  }
};

template <>
struct Wgmma<64> {
  template <int kRoom>
  __device__ static __forceinline__ void run(float (&d)[kRoom], const std::uint32_t (&a)[4],
                                             std::uint64_t b, bool accumulates) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
        : WINNOW_FOUR(0), WINNOW_FOUR(4), WINNOW_FOUR(8), WINNOW_FOUR(12), WINNOW_FOUR(16),
          WINNOW_FOUR(20), WINNOW_FOUR(24), WINNOW_FOUR(28)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
  }
};

template <>
struct Wgmma<96> {
  template <int kRoom>
  __device__ static __forceinline__ void run(float (&d)[kRoom], const std::uint32_t (&a)[4],
                                             std::uint64_t b, bool accumulates) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
        "}, {%48, %49, %50, %51}, %52, p, 1, 1, 0;\n}\n"
        : WINNOW_FOUR(0), WINNOW_FOUR(4), WINNOW_FOUR(8), WINNOW_FOUR(12), WINNOW_FOUR(16),
          WINNOW_FOUR(20), WINNOW_FOUR(24), WINNOW_FOUR(28), WINNOW_FOUR(32), WINNOW_FOUR(36),
          WINNOW_FOUR(40), WINNOW_FOUR(44)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
  }
};

template <>
struct Wgmma<128> {
  template <int kRoom>
  __device__ static __forceinline__ void run(float (&d)[kRoom], const std::uint32_t (&a)[4],
                                             std::uint64_t b, bool accumulates) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
        : WINNOW_FOUR(0), WINNOW_FOUR(4), WINNOW_FOUR(8), WINNOW_FOUR(12), WINNOW_FOUR(16),
          WINNOW_FOUR(20), WINNOW_FOUR(24), WINNOW_FOUR(28), WINNOW_FOUR(32), WINNOW_FOUR(36),
          WINNOW_FOUR(40), WINNOW_FOUR(44), WINNOW_FOUR(48), WINNOW_FOUR(52), WINNOW_FOUR(56),
          WINNOW_FOUR(60)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulates)));
  }
};

#undef WINNOW_FOUR

}  // namespace winnow::cuda
