// Loads with a say in caching, one instruction each. PTX ISA, ld.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace winnow::cuda {

// Of memory that is read once: past the first-level cache, which is left to what is read again. Not
// the .nc forms: the compiler moves those beyond griddepcontrol.wait.

__device__ inline uint4 ld_global_no_allocate_v4(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ inline uint2 ld_global_no_allocate_v2(const void* from) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}

__device__ inline std::uint32_t ld_global_no_allocate(const void* from) {
  std::uint32_t v;
  asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

}  // namespace winnow::cuda
