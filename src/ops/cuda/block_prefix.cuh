// A sum over a block's threads in their order.
#pragma once

namespace winnow::cuda {

/// The sum of `value` over the threads before this one; `total` that over all kWarps · 32. `room`
/// is [kWarps] in shared memory. Every thread calls it.
template <int kWarps>
__device__ __forceinline__ int block_prefix(int value, int* room, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int inclusive = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFU, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) room[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += room[w];
    total += room[w];
  }
  return before + inclusive - value;
}

}  // namespace winnow::cuda
