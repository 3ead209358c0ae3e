// A lane's part of packed weights in shared memory, as decode and prefill read it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/linear/cuda_fragments.cuh"

namespace winnow::cuda::fast_moe {

__device__ __forceinline__ uint4 load_shared(const std::byte* p) {
  return *reinterpret_cast<const uint4*>(p);
}

/// A lane's piece of one chunk of a 16-row tile, decoded a k-step at a time.
template <QuantScheme kScheme>
struct Chunk;

template <>
struct Chunk<QuantScheme::kNvfp4> {
  uint4 words;
  Nvfp4ScalePairs top;
  Nvfp4ScalePairs bottom;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    words = load_shared(chunk + lane * 16);
    const uint2 scales = *reinterpret_cast<const uint2*>(chunk + 512 + lane / 4 * 8);
    top = decode_nvfp4_scale_pairs(scales.x);
    bottom = decode_nvfp4_scale_pairs(scales.y);
  }
  template <int kStep>
  __device__ __forceinline__ void decode(std::uint32_t (&a)[4]) const {
    const std::uint32_t word = kStep == 0   ? words.x
                               : kStep == 1 ? words.y
                               : kStep == 2 ? words.z
                                            : words.w;
    nvfp4_fragment<kStep>(word, top, bottom, a);
  }
};

template <>
struct Chunk<QuantScheme::kMxfp8> {
  uint4 halves[2];
  std::uint32_t scales;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    halves[0] = load_shared(chunk + lane * 16);
    halves[1] = load_shared(chunk + 512 + lane * 16);
    scales = *reinterpret_cast<const std::uint32_t*>(chunk + 1024 + lane / 4 * 4);
  }
  template <int kStep>
  __device__ __forceinline__ void decode(std::uint32_t (&a)[4]) const {
    const uint4& half = halves[kStep / 2];
    mxfp8_fragment(kStep % 2 == 0 ? half.x : half.z, kStep % 2 == 0 ? half.y : half.w,
                   decode_mxfp8_scale_pair<kStep / 2>(scales),
                   decode_mxfp8_scale_pair<2 + kStep / 2>(scales), a);
  }
};

}  // namespace winnow::cuda::fast_moe
