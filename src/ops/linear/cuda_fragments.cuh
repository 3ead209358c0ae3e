// A lane's piece of a packed chunk (cuda_matrix.h) as the A operand of a bf16 m16n8k16 or wgmma:
// a[0] row g, columns 2c and 2c+1 (low half first); a[1] row g+8; a[2], a[3] the same 8 columns on.
//
// Exact: an element times its scale has at most 6 significant bits. Needs MatrixPart::fits_bf16.
// Ideas: bits placed at bf16's exponent and mantissa are the value times a power of two, subnormals
// included; that power is multiplied into the scale, once per scale, so that an element costs one
// half of a packed multiplication (Marlin does the same for its own layout).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda {

/// Two bf16, multiplied by two; one rounding each (none here).
__device__ __forceinline__ std::uint32_t multiply_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

/// What NVFP4 fragments lack: element · scale = fragment · kNvfp4FragmentScale. It belongs in the
/// epilogue, beside the matrix scale: a bf16 cannot hold 448 · 2^126.
inline constexpr float kNvfp4FragmentScale = 256.0F;

/// The four packed scales of one row of a chunk (one a step, low byte first).
struct Nvfp4RowScales {
  std::uint32_t bytes;
};

__device__ __forceinline__ Nvfp4RowScales decode_nvfp4_scales(std::uint32_t bytes) {
  return {bytes};
}

/// One step's scale times 2^118, in both halves: its exponent's bias is 10, bf16's 127.
template <int kStep>
__device__ __forceinline__ std::uint32_t nvfp4_step_scale(const Nvfp4RowScales& scales) {
  constexpr std::uint32_t kBias = (127U - 10U + 118U) << 7;
  return (scales.bytes >> (8 * kStep) & 0xFFU) * 0x00100010U + kBias * 0x00010001U;
}

/// The low or the high half of `pair` in both halves; as an operand of a packed multiplication it
/// costs nothing.
template <bool kIsHigh>
__device__ __forceinline__ std::uint32_t repeat_half(std::uint32_t pair) {
  std::uint32_t out;
  if constexpr (kIsHigh) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
        : "=r"(out)
        : "r"(pair));
  } else {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
        : "=r"(out)
        : "r"(pair));
  }
  return out;
}

/// The same scales decoded two at a time: fewer instructions, but two registers a row.
struct Nvfp4ScalePairs {
  std::uint32_t even;  // steps 0 and 2
  std::uint32_t odd;   // steps 1 and 3
};

/// Two instructions each; left to itself the compiler shifts before it masks and adds, in three.
__device__ __forceinline__ Nvfp4ScalePairs decode_nvfp4_scale_pairs(std::uint32_t bytes) {
  constexpr std::uint32_t kBias = ((127U - 10U + 118U) << 7) * 0x00010001U;
  Nvfp4ScalePairs pairs;
  asm("{ .reg .b32 even, odd; and.b32 even, %2, 0x00FF00FF; prmt.b32 odd, %2, 0, 0x4341; "
      "mad.lo.u32 %0, even, 16, %3; mad.lo.u32 %1, odd, 16, %3; }"
      : "=r"(pairs.even), "=r"(pairs.odd)
      : "r"(bytes), "r"(kBias));
  return pairs;
}

template <int kStep>
__device__ __forceinline__ std::uint32_t nvfp4_step_scale(const Nvfp4ScalePairs& scales) {
  return repeat_half<kStep / 2 == 1>(kStep % 2 == 0 ? scales.even : scales.odd);
}

/// `word` is the lane's of step kStep; `top` the scales of row g, `bottom` of row g+8.
template <int kStep, typename Scales>
__device__ __forceinline__ void nvfp4_fragment(std::uint32_t word, const Scales& top,
                                               const Scales& bottom, std::uint32_t (&a)[4]) {
  constexpr std::uint32_t kMask = 0x81C081C0;  // signs, and magnitudes as code · 2^-126
  const std::uint32_t top_scale = nvfp4_step_scale<kStep>(top);
  const std::uint32_t bottom_scale = nvfp4_step_scale<kStep>(bottom);
  a[0] = multiply_bf16x2(nvfp4_pair_bits(word, 0) & kMask, top_scale);
  a[1] = multiply_bf16x2(nvfp4_pair_bits(word, 1) & kMask, bottom_scale);
  a[2] = multiply_bf16x2(nvfp4_pair_bits(word, 2) & kMask, top_scale);
  a[3] = multiply_bf16x2(nvfp4_pair_bits(word, 3) & kMask, bottom_scale);
}

/// An E8M0 scale as 2^120 · scale in both halves; kByte selects it from a word.
template <int kByte>
__device__ __forceinline__ std::uint32_t decode_mxfp8_scale(std::uint32_t bytes) {
  const std::uint32_t code = bytes >> (8 * kByte) & 0xFFU;
  return code * 0x00800080U + 0x3C003C00U;
}

/// The same, where scales kByte and kByte ± 2 of the word are wanted both.
template <int kByte>
__device__ __forceinline__ std::uint32_t decode_mxfp8_scale_pair(std::uint32_t bytes) {
  const std::uint32_t pair = (bytes >> (kByte % 2 * 8) & 0x00FF00FFU) * 128U + 0x3C003C00U;
  return repeat_half<kByte / 2 == 1>(pair);
}

/// Four E4M3 bytes in the order of mxfp8_byte(): values 0, 1 in `first`, values 2, 3 in `second`.
__device__ __forceinline__ void mxfp8_pairs(std::uint32_t word, std::uint32_t first_scale,
                                            std::uint32_t second_scale, std::uint32_t& first,
                                            std::uint32_t& second) {
  constexpr std::uint32_t kSigns = 0x80008000;
  constexpr std::uint32_t kMagnitudes = 0x07F007F0;  // element · 2^-120
  first = multiply_bf16x2((word << 8 & kSigns) | (word << 4 & kMagnitudes), first_scale);
  second = multiply_bf16x2((word & kSigns) | (word >> 4 & kMagnitudes), second_scale);
}

/// The lane's eight bytes of one step (`low` first), scales as decode_mxfp8_scale() gives them for
/// rows g and g+8.
__device__ __forceinline__ void mxfp8_fragment(std::uint32_t low, std::uint32_t high,
                                               std::uint32_t top_scale, std::uint32_t bottom_scale,
                                               std::uint32_t (&a)[4]) {
  mxfp8_pairs(low, top_scale, bottom_scale, a[0], a[1]);
  mxfp8_pairs(high, top_scale, bottom_scale, a[2], a[3]);
}

}  // namespace winnow::cuda
