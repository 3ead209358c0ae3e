// How blocks tell each other what they have written: counters in device memory.
#pragma once

#include <cstdint>

namespace winnow::cuda::fast_moe {

__device__ inline std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

/// *p += 1 after everything that this thread, and by barriers others of its block, wrote before.
/// Unlike a fence it leaves L1 as it is.
__device__ inline std::uint32_t add_release(std::uint32_t* p) {
  std::uint32_t before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
  return before;
}

/// A warp waits until *p is at least `target`.
__device__ inline void wait_for_count(const std::uint32_t* p, std::uint32_t target) {
  if (threadIdx.x % 32 == 0) {
    while (load_acquire(p) < target) __nanosleep(32);
  }
  __syncwarp();
}

}  // namespace winnow::cuda::fast_moe
