// Cache pages as operands of the tensor cores, and the numerics that every fast MSA kernel follows,
// so that a token's result depends neither on the batch, nor on how a prompt is cut, nor on whether
// the decode or the prefill kernel computed it. (mma.sync.m16n8k16 and wgmma of k16 give equal bits
// on Hopper, whichever operand is called A.)
//
// Operands. nvfp4 and fp8 planes: fp16, in which E4M3 and E2M1 · E4M3 are exact; bf16 planes: bf16.
// Queries are rounded to the operand type, nearest even (exact when they were cast to E4M3).
//
// Scores. One chain of eight k16 steps from 0, accumulated in fp32. Which dims a step takes is
// key_dim() below: sixteen ascending dims for bf16; for nvfp4 and fp8 four from each quarter of the
// vector, so that lane c of a quad reads one contiguous quarter of a key.
//
// Index scores of a block: the largest over its visible keys, NaN as -inf.
//
// Attention of one (token, query head). `factor` = softmax_factor(scale).
//  - The list is cut in quarters: entries [4i, 4i + 4) of a list of 16 (of top_k:
//  quarter_entries()),
//    or, in a dense layer, runs of kDenseRunBlocks blocks by block number.
//  - Within a quarter, blocks in ascending order: m' = max(m, largest visible score of the block),
//    p = probability(s, m' · factor, factor), 0 for masked keys; alpha = rescale(m, m', factor).
//    Outputs: o = o · alpha, then one chain over the block's eight k16 steps of keys in ascending
//    order, P rounded to the operand type (nearest even) and V exact; keys beyond the context are 0
//    in both. Sums: key 8j + 2c + i of the block (c in 0..3, i in 0..1) belongs to part (j / 4, c);
//    a part adds its eight unrounded p in ascending order from 0 to s, then l = fma(l, alpha, s).
//    After the last block: l_c = ((l_0c + l_1c) + l_2c) + l_3c, l = (l_0 + l_1) + (l_2 + l_3).
//  - Quarters are merged in ascending order into (M, L, O) from (-inf, 0, 0); empty ones are
//  skipped:
//    M' = max(M, m), a = rescale(M, M'), b = rescale(m, M'), O = fma(o, b, O · a), L likewise.
//  - out = O · (1 / L), the reciprocal rounded to nearest; 0 for an empty list.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/cuda/ptx.cuh"

namespace winnow::cuda {

/// How a kernel reads a plane: the dtype and, for nvfp4, the mode.
enum class CacheFormat : std::uint8_t { kNvfp4E4m3, kNvfp4Exact, kFp8, kBf16 };

inline constexpr float kNegativeInfinity = -__builtin_huge_valf();
inline constexpr int kFastDim = 128;          // of K, V and index keys
inline constexpr int kFastBlockTokens = 128;  // of a page
inline constexpr int kDenseRunBlocks = 16;    // blocks of a "quarter" in a dense layer

constexpr bool is_nvfp4(CacheFormat format) {
  return format == CacheFormat::kNvfp4E4m3 || format == CacheFormat::kNvfp4Exact;
}
/// Bytes of one vector of kFastDim values in the plane's data, and of its scales.
constexpr int vector_bytes(CacheFormat format) {
  return is_nvfp4(format) ? kFastDim / 2 : format == CacheFormat::kFp8 ? kFastDim : 2 * kFastDim;
}
constexpr int vector_scale_bytes(CacheFormat format) {
  return is_nvfp4(format) ? kFastDim / 16 : 0;
}

/// True when `dtype` has a CacheFormat (all but f32).
constexpr bool has_cache_format(CacheDType dtype) { return dtype != CacheDType::kF32; }
constexpr CacheFormat cache_format(CacheDType dtype, DequantMode mode) {
  if (dtype == CacheDType::kBF16) return CacheFormat::kBf16;
  if (dtype == CacheDType::kFp8) return CacheFormat::kFp8;
  return mode == DequantMode::kE4M3 ? CacheFormat::kNvfp4E4m3 : CacheFormat::kNvfp4Exact;
}
/// Calls function.template operator()<format>(): a launch of the kernel made for a format.
template <typename Function>
void with_cache_format(CacheFormat format, const Function& function) {
  switch (format) {
    case CacheFormat::kNvfp4E4m3:
      return function.template operator()<CacheFormat::kNvfp4E4m3>();
    case CacheFormat::kNvfp4Exact:
      return function.template operator()<CacheFormat::kNvfp4Exact>();
    case CacheFormat::kFp8:
      return function.template operator()<CacheFormat::kFp8>();
    case CacheFormat::kBf16:
      return function.template operator()<CacheFormat::kBf16>();
  }
}

/// The dim that position r of k16 step `step` holds, for queries and keys alike. Lane c of a quad
/// feeds r = 2c, 2c+1, 2c+8, 2c+9.
__host__ __device__ constexpr int key_dim(CacheFormat format, int step, int r) {
  if (format == CacheFormat::kBf16) return 16 * step + r;
  return 32 * (r % 8 / 2) + 4 * step + 2 * (r / 8) + r % 2;
}

/// Entries of a quarter of a list of `top_k` (at most 16) entries.
__host__ __device__ constexpr int quarter_entries(int top_k) { return (top_k + 3) / 4; }

// ---- Dequantisation: codes to operands, in the order of the codes ----

/// What sixteen values share. For kNvfp4E4m3 a row of the table, the eight magnitudes times the
/// scale in E4M3; for kNvfp4Exact the scale twice.
template <CacheFormat F>
struct GroupScale {};
template <>
struct GroupScale<CacheFormat::kNvfp4E4m3> {
  std::uint32_t low, high;
};
template <>
struct GroupScale<CacheFormat::kNvfp4Exact> {
  __half2 scale;
};

/// Rows by scale byte, whose sign has no meaning: 1 KiB in shared memory, which only kNvfp4E4m3
/// reads. Needs a barrier after.
inline constexpr int kMagnitudeRows = 128;
__device__ inline void fill_scaled_magnitudes(uint2* table, int thread, int num_threads) {
  for (int scale = thread; scale < kMagnitudeRows; scale += num_threads) {
    const std::uint32_t halves = ptx::cvt_f16x2_e4m3x2(static_cast<std::uint16_t>(scale));
    const __half2 twice = __half2half2(__ushort_as_half(static_cast<unsigned short>(halves)));
    const auto pair = [&](float a, float b) -> std::uint32_t {
      const __half2 product = __hmul2(__floats2half2_rn(a, b), twice);
      return ptx::cvt_satfinite_e4m3x2_f16x2(reinterpret_cast<const std::uint32_t&>(product));
    };
    table[scale] = {pair(0.0F, 0.5F) | pair(1.0F, 1.5F) << 16, pair(2.0F, 3.0F) | pair(4.0F, 6.0F)
                                                                                      << 16};
  }
}

/// The share of one group whose scale byte is the low one of `scale`.
template <CacheFormat F>
__device__ __forceinline__ GroupScale<F> load_group_scale(std::uint32_t scale, const uint2* table) {
  GroupScale<F> group;
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    const uint2 row = table[scale & 0x7FU];
    group.low = row.x;
    group.high = row.y;
  } else {
    const std::uint32_t both = ptx::cvt_f16x2_e4m3x2(static_cast<std::uint16_t>(scale & 0x7FU));
    group.scale = __low2half2(reinterpret_cast<const __half2&>(both));
  }
  return group;
}

/// The shares of two neighbouring groups whose scale bytes are the low and the next byte of `pair`.
template <CacheFormat F>
__device__ __forceinline__ void load_group_scales(std::uint32_t pair, const uint2* table,
                                                  GroupScale<F>& first, GroupScale<F>& second) {
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    const uint2* const rows[2] = {table + (pair & 0x7FU), table + (pair >> 8 & 0x7FU)};
    first.low = rows[0]->x;
    first.high = rows[0]->y;
    second.low = rows[1]->x;
    second.high = rows[1]->y;
  } else if constexpr (F == CacheFormat::kNvfp4Exact) {
    const std::uint32_t both = ptx::cvt_f16x2_e4m3x2(static_cast<std::uint16_t>(pair & 0x7F7FU));
    const __half2 halves = reinterpret_cast<const __half2&>(both);
    first.scale = __low2half2(halves);
    second.scale = __high2half2(halves);
  }
}

/// High bytes of 0, .5, 1, 1.5, 2, 3, 4, 6 in fp16; the low bytes are 0.
inline constexpr std::uint32_t kHalfMagnitudesLow = 0x3E3C3800U;
inline constexpr std::uint32_t kHalfMagnitudesHigh = 0x46444240U;

/// The high bytes of four halves times the scales of a pair.
__device__ __forceinline__ void scale_halves(std::uint32_t bytes, __half2 scales,
                                             std::uint32_t& first, std::uint32_t& second) {
  const auto product = [&](std::uint32_t pick) {
    const std::uint32_t halves = ptx::prmt(bytes, 0U, pick);
    const __half2 scaled = __hmul2(reinterpret_cast<const __half2&>(halves), scales);
    return reinterpret_cast<const std::uint32_t&>(scaled);
  };
  first = product(0x1404U);
  second = product(0x3424U);
}

/// Eight codes, low nibble first, to bytes in order: E4M3, or the high bytes of halves that lack
/// the scale.
template <CacheFormat F>
__device__ __forceinline__ void expand_to_bytes(std::uint32_t codes, const GroupScale<F>& group,
                                                std::uint32_t (&bytes)[2]) {
  static_assert(is_nvfp4(F));
  constexpr std::uint32_t kSigns = 0x80808080U;
  std::uint32_t low = kHalfMagnitudesLow;
  std::uint32_t high = kHalfMagnitudesHigh;
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    low = group.low;
    high = group.high;
  }
  const std::uint32_t selector = codes & 0x77777777U;
  const std::uint32_t upper = selector >> 16;
  const std::uint32_t shifted = codes << 4;  // the sign of an even nibble at the top of its byte
  bytes[0] = ptx::prmt(low, high, selector) | (ptx::prmt(shifted, codes, 0x5140U) & kSigns);
  bytes[1] = ptx::prmt(low, high, upper) | (ptx::prmt(shifted, codes, 0x7362U) & kSigns);
}

/// The same to eight halves, in 13 instructions (e4m3) or 17 (exact).
template <CacheFormat F>
__device__ __forceinline__ void expand_nvfp4(std::uint32_t codes, const GroupScale<F>& group,
                                             std::uint32_t (&values)[4]) {
  std::uint32_t bytes[2];
  expand_to_bytes<F>(codes, group, bytes);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (F == CacheFormat::kNvfp4E4m3) {
      ptx::cvt_f16x2_e4m3x2_pairs(bytes[i], values[2 * i], values[2 * i + 1]);
    } else {
      scale_halves(bytes[i], group.scale, values[2 * i], values[2 * i + 1]);
    }
  }
}

/// Four codes of one vector in the low half of `codes` and four of another in the high one:
/// values[d] is code d of both, the first vector's low. `first` and `second` are their groups.
template <CacheFormat F>
__device__ __forceinline__ void expand_nvfp4_pair(std::uint32_t codes, const GroupScale<F>& first,
                                                  const GroupScale<F>& second,
                                                  std::uint32_t (&values)[4]) {
  static_assert(is_nvfp4(F));
  constexpr std::uint32_t kSigns = 0x80808080U;
  const std::uint32_t selector = codes & 0x77777777U;
  const std::uint32_t upper = selector >> 16;
  const std::uint32_t shifted = codes << 4;
  std::uint32_t a, b;
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    a = ptx::prmt(first.low, first.high, selector);
    b = ptx::prmt(second.low, second.high, upper);
  } else {
    a = ptx::prmt(kHalfMagnitudesLow, kHalfMagnitudesHigh, selector);
    b = ptx::prmt(kHalfMagnitudesLow, kHalfMagnitudesHigh, upper);
  }
  const std::uint32_t low =
      ptx::prmt(a, b, 0x5140U) | (ptx::prmt(shifted, codes, 0x6420U) & kSigns);
  const std::uint32_t high =
      ptx::prmt(a, b, 0x7362U) | (ptx::prmt(shifted, codes, 0x7531U) & kSigns);
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    ptx::cvt_f16x2_e4m3x2_pairs(low, values[0], values[1]);
    ptx::cvt_f16x2_e4m3x2_pairs(high, values[2], values[3]);
  } else {
    const __half2 scales = __lows2half2(first.scale, second.scale);
    scale_halves(low, scales, values[0], values[1]);
    scale_halves(high, scales, values[2], values[3]);
  }
}

/// Four E4M3 codes to four halves in order.
__device__ __forceinline__ void expand_fp8(std::uint32_t codes, std::uint32_t (&values)[2]) {
  ptx::cvt_f16x2_e4m3x2_pairs(codes, values[0], values[1]);
}

/// The part of one key that lane c of its quad feeds: step j takes operands[j][0] at positions
/// 2c, 2c+1 and operands[j][1] at 2c+8, 2c+9.
struct KeyFragment {
  std::uint32_t operands[8][2];
};

/// nvfp4: `codes` are bytes [16c, 16c + 16) of the key, `scales` its scale bytes 2c, 2c+1.
template <CacheFormat F>
__device__ __forceinline__ void expand_key(const uint4& codes, std::uint32_t scales,
                                           const uint2* table, KeyFragment& key) {
  static_assert(is_nvfp4(F));
  GroupScale<F> first, second;
  load_group_scales<F>(scales, table, first, second);
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t values[4];
    expand_nvfp4<F>(words[i], i < 2 ? first : second, values);
    key.operands[2 * i][0] = values[0];
    key.operands[2 * i][1] = values[1];
    key.operands[2 * i + 1][0] = values[2];
    key.operands[2 * i + 1][1] = values[3];
  }
}

/// fp8: `low` and `high` are bytes [32c, 32c + 16) and [32c + 16, 32c + 32) of the key.
__device__ __forceinline__ void expand_fp8_key(const uint4& low, const uint4& high,
                                               KeyFragment& key) {
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int j = 0; j < 8; ++j) expand_fp8(words[j], key.operands[j]);
}

/// Two floats to the operand type, nearest even; `a` becomes the low half.
template <CacheFormat F>
__device__ __forceinline__ std::uint32_t pack_operands(float a, float b) {
  if constexpr (F == CacheFormat::kBf16) {
    const __nv_bfloat162 packed = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const std::uint32_t&>(packed);
  } else {
    const __half2 packed = __floats2half2_rn(a, b);
    return reinterpret_cast<const std::uint32_t&>(packed);
  }
}

template <CacheFormat F>
__device__ __forceinline__ void mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (F == CacheFormat::kBf16) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  } else {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
}

// ---- Softmax ----

/// Scores are multiplied by it inside the base-2 exponent.
__host__ __device__ inline float softmax_factor(float scale) { return scale * 0x1.715476p0F; }

/// exp(scale · (score - maximum)); `scaled_maximum` = maximum · factor, rounded. Callers give
/// masked keys 0 instead.
__device__ __forceinline__ float probability(float score, float scaled_maximum, float factor) {
  return ptx::ex2_approx_ftz(__fmaf_rn(score, factor, -scaled_maximum));
}

/// What sums relative to `from` are multiplied by to be relative to `to` ≥ from; `to` is finite,
/// `from` may be -inf.
__device__ __forceinline__ float rescale(float from, float to, float factor) {
  return probability(from, __fmul_rn(to, factor), factor);
}

/// Ascending merge of the quarters' maxima and sums; `a` and `b` scale the merged and the added
/// outputs: O = fma(o, b, O · a).
struct MergedSoftmax {
  float maximum = kNegativeInfinity;
  float sum = 0.0F;

  __device__ __forceinline__ void add(float quarter_maximum, float quarter_sum, float factor,
                                      float& a, float& b) {
    if (quarter_maximum == kNegativeInfinity) {
      a = 1.0F;
      b = 0.0F;
      return;
    }
    const float larger = fmaxf(maximum, quarter_maximum);
    a = rescale(maximum, larger, factor);
    b = rescale(quarter_maximum, larger, factor);
    sum = __fmaf_rn(quarter_sum, b, __fmul_rn(sum, a));
    maximum = larger;
  }
  /// Multiplies O; 0 when nothing was added.
  __device__ __forceinline__ float normalizer() const { return sum > 0.0F ? __frcp_rn(sum) : 0.0F; }
};

}  // namespace winnow::cuda
