// One lane's share of a packed chunk (cuda_matrix.h) in registers: loaded as 16-byte words, handed
// out as the A fragments of the chunk's four k16 steps (cuda_fragments.cuh).
#pragma once

#include <cstdint>

#include "ops/cuda/load.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda {

/// Where a lane's bytes of a chunk lie; the chunks of a tile follow each other.
struct LaneSource {
  const std::byte* words = nullptr;
  const std::byte* scales = nullptr;

  __device__ __forceinline__ void advance(std::int64_t num_bytes) {
    words += num_bytes;
    scales += num_bytes;
  }
};

template <QuantScheme S>
__device__ __forceinline__ LaneSource lane_source(const std::byte* chunk, int lane) {
  switch (S) {
    case QuantScheme::kMxfp8:
      return {chunk + lane * 16, chunk + 1024 + lane / 4 * 4};
    case QuantScheme::kNvfp4:
      return {chunk + lane * 16, chunk + 512 + lane / 4 * 8};
    default:
      return {chunk + lane * 16, nullptr};
  }
}

/// A register of its own for a value, made here and not earlier.
__device__ __forceinline__ std::uint32_t copy_register(std::uint32_t value) {
  std::uint32_t copy;
  asm volatile("mov.b32 %0, %1;" : "=r"(copy) : "r"(value));
  return copy;
}

__device__ __forceinline__ void pin_words(uint4& words) {
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)::"memory");
}

/// load() starts the loads, `ahead` bytes (a constant) from `source`; load_shared() reads a copy of
/// the chunk at an address of shared memory; fragment(step, a) is called with constant steps. What
/// is computed from the words after pin() stays after it: an asynchronous matrix instruction may
/// still read the registers that fragments are about to go to.
template <QuantScheme S>
struct LaneChunk;

template <>
struct LaneChunk<QuantScheme::kMxfp8> {
  uint4 halves[2];
  std::uint32_t scales;

  __device__ __forceinline__ void load_shared(std::uint32_t chunk, int lane) {
    halves[0] = ptx::ld_shared_v4(chunk + lane * 16);
    halves[1] = ptx::ld_shared_v4(chunk + lane * 16 + 512);
    scales = ptx::ld_shared(chunk + 1024 + lane / 4 * 4);
  }
  __device__ __forceinline__ void load(const LaneSource& source, int ahead) {
    halves[0] = ld_global_no_allocate_v4(source.words + ahead);
    halves[1] = ld_global_no_allocate_v4(source.words + ahead + 512);
    scales = ld_global_no_allocate(source.scales + ahead);
  }
  __device__ __forceinline__ void pin() {
    pin_words(halves[0]);
    pin_words(halves[1]);
  }
  __device__ __forceinline__ void fragment(int step, std::uint32_t (&a)[4]) const {
    const uint4& half = halves[step / 2];
    const std::uint32_t top =
        step < 2 ? decode_mxfp8_scale<0>(scales) : decode_mxfp8_scale<1>(scales);
    const std::uint32_t bottom =
        step < 2 ? decode_mxfp8_scale<2>(scales) : decode_mxfp8_scale<3>(scales);
    mxfp8_fragment(step % 2 == 0 ? half.x : half.z, step % 2 == 0 ? half.y : half.w, top, bottom,
                   a);
  }
};

template <>
struct LaneChunk<QuantScheme::kNvfp4> {
  uint4 words;
  uint2 scales;

  __device__ __forceinline__ void load_shared(std::uint32_t chunk, int lane) {
    words = ptx::ld_shared_v4(chunk + lane * 16);
    scales = ptx::ld_shared_v2(chunk + 512 + lane / 4 * 8);
  }
  __device__ __forceinline__ void load(const LaneSource& source, int ahead) {
    words = ld_global_no_allocate_v4(source.words + ahead);
    scales = ld_global_no_allocate_v2(source.scales + ahead);
  }
  __device__ __forceinline__ void pin() { pin_words(words); }
  __device__ __forceinline__ void fragment(int step, std::uint32_t (&a)[4]) const {
    const Nvfp4RowScales top = decode_nvfp4_scales(scales.x);
    const Nvfp4RowScales bottom = decode_nvfp4_scales(scales.y);
    switch (step) {
      case 0:
        return nvfp4_fragment<0>(words.x, top, bottom, a);
      case 1:
        return nvfp4_fragment<1>(words.y, top, bottom, a);
      case 2:
        return nvfp4_fragment<2>(words.z, top, bottom, a);
      default:
        return nvfp4_fragment<3>(words.w, top, bottom, a);
    }
  }
};

template <>
struct LaneChunk<QuantScheme::kBF16> {
  uint4 steps[4];

  __device__ __forceinline__ void load_shared(std::uint32_t chunk, int lane) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      steps[step] = ptx::ld_shared_v4(chunk + lane * 16 + step * 512);
    }
  }
  __device__ __forceinline__ void load(const LaneSource& source, int ahead) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      steps[step] = ld_global_no_allocate_v4(source.words + ahead + step * 512);
    }
  }
  __device__ __forceinline__ void fragment(int step, std::uint32_t (&a)[4]) const {
    a[0] = copy_register(steps[step].x);
    a[1] = copy_register(steps[step].y);
    a[2] = copy_register(steps[step].z);
    a[3] = copy_register(steps[step].w);
  }
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (uint4& step : steps) pin_words(step);
  }
};

/// What a finished sum of `part` is multiplied with.
inline float sum_scale(const MatrixPart& part) {
  return part.scheme == QuantScheme::kNvfp4 ? part.matrix_scale * kNvfp4FragmentScale
                                            : part.matrix_scale;
}

}  // namespace winnow::cuda
