// Row codecs with AVX-512 (F, BW, VL, DQ, VBMI). Compiled for that alone: see bulk_codecs.h.
#include "formats/bulk_codecs.h"
#include "formats/dequant_table.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
// GCC 12 warns about its own AVX-512 header (GCC bug 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace winnow {

namespace {

constexpr int64_t kWidth = 16;  // floats of a register, and values of an NVFP4 group

__mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kWidth ? 0xFFFF : (1U << count) - 1U);
}

__m512i magnitude_bits(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
}

// formats/e4m3.h encode_e4m3, one code in the low byte of each lane.
__m512i encode_e4m3_lanes(__m512 x) {
  const __m512i magnitude = magnitude_bits(x);
  const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
  const __m512i capped = _mm512_min_epu32(magnitude, _mm512_set1_epi32(0x43E00000));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(capped, _mm512_set1_epi32(0x3C800000));
  const __m512i subnormal = _mm512_sub_epi32(
      _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(capped), _mm512_set1_ps(16384.F))),
      _mm512_set1_epi32(0x46800000));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(capped, 20), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_add_epi32(_mm512_add_epi32(capped, _mm512_set1_epi32(0x7FFFF)), odd);
  const __m512i normal = _mm512_sub_epi32(_mm512_srli_epi32(rounded, 20), _mm512_set1_epi32(960));
  __m512i code = _mm512_mask_mov_epi32(normal, is_small, subnormal);
  code = _mm512_mask_mov_epi32(code, is_nan, _mm512_set1_epi32(0x7F));
  const __m512i sign =
      _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 24), _mm512_set1_epi32(0x80));
  return _mm512_or_si512(code, sign);
}

// formats/e4m3.h decode_e4m3 of the low byte of each lane.
__m512 decode_e4m3_lanes(__m512i code) {
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7F));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, _mm512_set1_epi32(0x80)), 24);
  const __m512i normal =
      _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
  const __m512 subnormal =
      _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(1.F / 512.F));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
  const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F));
  __m512i bits = _mm512_mask_mov_epi32(normal, is_small, _mm512_castps_si512(subnormal));
  bits = _mm512_mask_mov_epi32(bits, is_nan, _mm512_set1_epi32(0x7FC00000));
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}

// Each lane rounded to BF16 in its upper word; the lower word is to be dropped.
__m512i bf16_in_upper_words(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __mmask16 is_nan =
      _mm512_cmpgt_epi32_mask(magnitude_bits(x), _mm512_set1_epi32(0x7F800000));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
}

// Masked loads and stores are kept to the tails: some CPUs microcode the narrow ones.
void encode_bf16_row(const float* x, uint16_t* out, int64_t n) {
  // The odd words of two registers in order: one permute where two narrowing moves would cost four.
  alignas(64) uint16_t odd_words[32];
  for (unsigned i = 0; i < 32; ++i) odd_words[i] = static_cast<uint16_t>(2 * i + 1);
  const __m512i order = _mm512_load_si512(odd_words);
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const __m512i low = bf16_in_upper_words(_mm512_loadu_ps(x + i));
    const __m512i high = bf16_in_upper_words(_mm512_loadu_ps(x + i + kWidth));
    _mm512_storeu_si512(out + i, _mm512_permutex2var_epi16(low, order, high));
  }
  for (; i < n; i += kWidth) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512i words =
        _mm512_srli_epi32(bf16_in_upper_words(_mm512_maskz_loadu_ps(lanes, x + i)), 16);
    _mm256_mask_storeu_epi16(out + i, lanes, _mm512_cvtepi32_epi16(words));
  }
}

void decode_bf16_row(const uint16_t* x, float* out, int64_t n) {
  const auto widen = [](__m256i words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  };
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    _mm512_storeu_ps(out + i, widen(words));
  }
  const __mmask16 lanes = first_lanes(n - i);
  _mm512_mask_storeu_ps(out + i, lanes, widen(_mm256_maskz_loadu_epi16(lanes, x + i)));
}

void encode_e4m3_row(const float* x, uint8_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m512i codes = encode_e4m3_lanes(_mm512_loadu_ps(x + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm512_cvtepi32_epi8(codes));
  }
  const __mmask16 lanes = first_lanes(n - i);
  const __m512i codes = encode_e4m3_lanes(_mm512_maskz_loadu_ps(lanes, x + i));
  _mm_mask_storeu_epi8(out + i, lanes, _mm512_cvtepi32_epi8(codes));
}

void decode_e4m3_row(const uint8_t* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    _mm512_storeu_ps(out + i, decode_e4m3_lanes(_mm512_cvtepu8_epi32(codes)));
  }
  const __mmask16 lanes = first_lanes(n - i);
  const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, x + i));
  _mm512_mask_storeu_ps(out + i, lanes, decode_e4m3_lanes(codes));
}

// Eight bytes, low nibble first, of 16 values in units of `scale`: the ladder of formats/e2m1.h as
// a search over its three code bits. The first two ask >=, the last >, as the ladder does. A NaN
// scale fails every comparison and so gives zero codes.
void store_e2m1_group(__m512 x, float scale, uint8_t* codes) {
  const __m512 ladder = _mm512_setr_ps(1.75F, 0.F, 0.75F, 3.5F, 0.25F, 1.25F, 2.5F, 5.F, 0.F, 0.F,
                                       0.F, 0.F, 0.F, 0.F, 0.F, 0.F);
  const __m512 thresholds = _mm512_mul_ps(ladder, _mm512_set1_ps(scale));
  const __m512 magnitude = _mm512_castsi512_ps(magnitude_bits(x));
  const __m512i one = _mm512_set1_epi32(1);
  const auto next_bit = [&](__m512i code, __mmask16 is_set) {
    const __m512i doubled = _mm512_add_epi32(code, code);
    return _mm512_mask_add_epi32(doubled, is_set, doubled, one);
  };
  const auto threshold = [&](__m512i code, int first) {
    return _mm512_permutexvar_ps(_mm512_add_epi32(code, _mm512_set1_epi32(first)), thresholds);
  };
  const __m512 top = _mm512_broadcastss_ps(_mm512_castps512_ps128(thresholds));
  __m512i code = _mm512_maskz_mov_epi32(_mm512_cmp_ps_mask(magnitude, top, _CMP_GE_OQ), one);
  code = next_bit(code, _mm512_cmp_ps_mask(magnitude, threshold(code, 2), _CMP_GE_OQ));
  code = next_bit(code, _mm512_cmp_ps_mask(magnitude, threshold(code, 4), _CMP_GT_OQ));
  const __mmask16 negative =
      _mm512_movepi32_mask(_mm512_castps_si512(x)) & _mm512_test_epi32_mask(code, code);
  code = _mm512_mask_or_epi32(code, negative, code, _mm512_set1_epi32(8));
  // Per 64-bit pair: value 2j in bits 0..3, value 2j+1 in bits 32..35, wanted in bits 4..7.
  const __m512i pairs = _mm512_or_si512(code, _mm512_srli_epi64(code, 28));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi64_epi8(pairs));
}

// Lane g = the largest magnitude bits of group g, for `count` groups (the rest 0); bits(g) gives a
// group's lanes. Sixteen reductions at once: each step joins two registers and halves what is left
// of both, so the order of the groups comes out ascending.
template <typename Bits>
__m512i group_maxima(int64_t count, Bits bits) {
  __m512i m[kWidth];
  for (int64_t g = 0; g < kWidth; ++g) m[g] = g < count ? bits(g) : _mm512_setzero_si512();
  for (int64_t i = 0; i < 8; ++i) {
    m[i] = _mm512_max_epu32(_mm512_unpacklo_epi32(m[2 * i], m[2 * i + 1]),
                            _mm512_unpackhi_epi32(m[2 * i], m[2 * i + 1]));
  }
  for (int64_t i = 0; i < 4; ++i) {
    m[i] = _mm512_max_epu32(_mm512_unpacklo_epi64(m[2 * i], m[2 * i + 1]),
                            _mm512_unpackhi_epi64(m[2 * i], m[2 * i + 1]));
  }
  // Now each 128-bit lane holds four groups; even and odd lanes are still to be joined, twice.
  for (int64_t remaining = 2; remaining > 0; --remaining) {
    for (int64_t i = 0; i < remaining; ++i) {
      m[i] = _mm512_max_epu32(_mm512_shuffle_i32x4(m[2 * i], m[2 * i + 1], 0x88),
                              _mm512_shuffle_i32x4(m[2 * i], m[2 * i + 1], 0xDD));
    }
  }
  return m[0];
}

// Quantises up to 16 groups at a time so that their scales fill one register.
template <bool is_cache>
void quantize_nvfp4(const float* x, float global_scale, uint8_t* codes, uint8_t* scales,
                    int64_t n) {
  const int64_t num_groups = n / kWidth;
  const __m512 global = _mm512_set1_ps(global_scale);
  const auto load = [&](int64_t group) {
    const __m512 values = _mm512_loadu_ps(x + group * kWidth);
    return is_cache ? values : _mm512_mul_ps(values, global);
  };
  for (int64_t begin = 0; begin < num_groups; begin += kWidth) {
    const int64_t count = num_groups - begin < kWidth ? num_groups - begin : kWidth;
    const __m512i maxima =
        group_maxima(count, [&](int64_t g) { return magnitude_bits(load(begin + g)); });
    const __m512 sixth = _mm512_div_ps(_mm512_castsi512_ps(maxima), _mm512_set1_ps(6.F));
    // max and min return their second operand when one is NaN, so a NaN reaches the encoder.
    const __m512 clamped = is_cache
                               ? _mm512_min_ps(_mm512_set1_ps(448.F),
                                               _mm512_max_ps(_mm512_set1_ps(1.F / 512.F), sixth))
                               : sixth;
    const __m512i scale_codes = encode_e4m3_lanes(clamped);
    const __m128i scale_bytes = _mm512_cvtepi32_epi8(scale_codes);
    if (count == kWidth) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(scales + begin), scale_bytes);
    } else {
      _mm_mask_storeu_epi8(scales + begin, first_lanes(count), scale_bytes);
    }
    alignas(64) float scale[kWidth];
    // A weight group whose scale rounded to 0 stores zero codes: NaN has that effect below.
    const __mmask16 is_zero = _mm512_testn_epi32_mask(scale_codes, scale_codes);
    _mm512_store_ps(scale, _mm512_mask_mov_ps(decode_e4m3_lanes(scale_codes), is_zero,
                                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000))));

    for (int64_t g = 0; g < count; ++g) {
      store_e2m1_group(load(begin + g), scale[g], codes + (begin + g) * (kWidth / 2));
    }
  }
}

void quantize_nvfp4_cache_row(const float* x, uint8_t* codes, uint8_t* scales, int64_t n) {
  quantize_nvfp4<true>(x, 1.F, codes, scales, n);
}

void quantize_nvfp4_weight_row(const float* x, float global_scale, uint8_t* codes, uint8_t* scales,
                               int64_t n) {
  quantize_nvfp4<false>(x, global_scale, codes, scales, n);
}

// Signed element values of 8 code bytes.
__m512 e2m1_values(const uint8_t* codes) {
  const __m512 table = _mm512_setr_ps(0.F, 0.5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -0.5F, -1.F,
                                      -1.5F, -2.F, -3.F, -4.F, -6.F);
  const __m512i bytes =
      _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  // Low nibble stays in the low lane of the pair, high nibble moves to bits 32..35; permutexvar
  // reads the low four bits of each lane only.
  const __m512i nibbles = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
  return _mm512_permutexvar_ps(nibbles, table);
}

// Sixteen scales as floats, `count` of them real.
void load_scales(const uint8_t* scales, int64_t count, int byte_mask, float* out) {
  const __m128i bytes = count == kWidth ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales))
                                        : _mm_maskz_loadu_epi8(first_lanes(count), scales);
  const __m512i codes = _mm512_and_si512(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(byte_mask));
  _mm512_store_ps(out, decode_e4m3_lanes(codes));
}

void dequantize_nvfp4_exact_row(const uint8_t* codes, const uint8_t* scales, float* out,
                                int64_t n) {
  const int64_t num_groups = n / kWidth;
  for (int64_t begin = 0; begin < num_groups; begin += kWidth) {
    const int64_t count = num_groups - begin < kWidth ? num_groups - begin : kWidth;
    alignas(64) float scale[kWidth];
    load_scales(scales + begin, count, 0x7F, scale);
    for (int64_t g = 0; g < count; ++g) {
      const __m512 values = e2m1_values(codes + (begin + g) * (kWidth / 2));
      _mm512_storeu_ps(out + (begin + g) * kWidth, _mm512_mul_ps(values, _mm512_set1_ps(scale[g])));
    }
  }
}

void dequantize_nvfp4_weight_row(const uint8_t* codes, const uint8_t* scales, float multiplier,
                                 float* out, int64_t n) {
  const int64_t num_groups = n / kWidth;
  const __m512 factor = _mm512_set1_ps(multiplier);
  for (int64_t begin = 0; begin < num_groups; begin += kWidth) {
    const int64_t count = num_groups - begin < kWidth ? num_groups - begin : kWidth;
    alignas(64) float scale[kWidth];
    load_scales(scales + begin, count, 0xFF, scale);
    for (int64_t g = 0; g < count; ++g) {
      const __m512 product =
          _mm512_mul_ps(e2m1_values(codes + (begin + g) * (kWidth / 2)), _mm512_set1_ps(scale[g]));
      _mm512_storeu_ps(out + (begin + g) * kWidth, _mm512_mul_ps(product, factor));
    }
  }
}

// E4M3 bytes of one group: the table row of the scale, looked up by magnitude, sign by XOR.
__m128i e4m3_group(const uint8_t* codes, uint8_t scale) {
  const auto* table = reinterpret_cast<const uint8_t*>(&kDequantTable);
  const __m128i row = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table + int64_t{scale} * 8));
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m128i nibble_mask = _mm_set1_epi8(0xF);
  const __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(bytes, nibble_mask),
                                            _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble_mask));
  const __m128i magnitudes = _mm_shuffle_epi8(row, _mm_and_si128(nibbles, _mm_set1_epi8(7)));
  // The four bits hold 8 = sign; shifted left by four within 16-bit lanes it is bit 7 of the byte.
  const __m128i signs = _mm_slli_epi16(_mm_and_si128(nibbles, _mm_set1_epi8(8)), 4);
  return _mm_xor_si128(magnitudes, signs);
}

void dequantize_nvfp4_e4m3_row(const uint8_t* codes, const uint8_t* scales, uint8_t* out,
                               int64_t n) {
  for (int64_t g = 0; g < n / kWidth; ++g) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g * kWidth),
                     e4m3_group(codes + g * (kWidth / 2), scales[g]));
  }
}

void dequantize_nvfp4_e4m3_to_float_row(const uint8_t* codes, const uint8_t* scales, float* out,
                                        int64_t n) {
  for (int64_t g = 0; g < n / kWidth; ++g) {
    const __m128i bytes = e4m3_group(codes + g * (kWidth / 2), scales[g]);
    _mm512_storeu_ps(out + g * kWidth, decode_e4m3_lanes(_mm512_cvtepu8_epi32(bytes)));
  }
}

void quantize_mxfp8_row(const float* x, uint8_t* elements, uint8_t* scales, int64_t n) {
  for (int64_t g = 0; g < n / 32; ++g) {
    const __m512 low = _mm512_loadu_ps(x + g * 32);
    const __m512 high = _mm512_loadu_ps(x + g * 32 + 16);
    const uint32_t bits =
        _mm512_reduce_max_epu32(_mm512_max_epu32(magnitude_bits(low), magnitude_bits(high)));
    auto* out = reinterpret_cast<__m128i*>(elements + g * 32);
    if (bits > 0x7F800000U) {
      scales[g] = 255;
      _mm_storeu_si128(out, _mm_setzero_si128());
      _mm_storeu_si128(out + 1, _mm_setzero_si128());
      continue;
    }
    const uint32_t finite = bits < 0x7F7FFFFFU ? bits : 0x7F7FFFFFU;
    const int biased = static_cast<int>((finite + 0x1FFFFFU) >> 23) - 8;
    const int scale = bits == 0 ? 127 : biased < 0 ? 0 : biased;  // formats/mxfp8.h
    scales[g] = static_cast<uint8_t>(scale);
    const __m512 inverse = _mm512_castsi512_ps(_mm512_set1_epi32((254 - scale) << 23));
    _mm_storeu_si128(out, _mm512_cvtepi32_epi8(encode_e4m3_lanes(_mm512_mul_ps(low, inverse))));
    _mm_storeu_si128(out + 1,
                     _mm512_cvtepi32_epi8(encode_e4m3_lanes(_mm512_mul_ps(high, inverse))));
  }
}

void dequantize_mxfp8_row(const uint8_t* elements, const uint8_t* scales, float* out, int64_t n) {
  for (int64_t g = 0; g < n / 32; ++g) {
    const int scale = scales[g];
    const int bits = scale == 255 ? 0x7FC00000 : scale == 0 ? 0x00400000 : scale << 23;
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(bits));
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t begin = g * 32 + half * kWidth;
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(elements + begin));
      _mm512_storeu_ps(out + begin,
                       _mm512_mul_ps(decode_e4m3_lanes(_mm512_cvtepu8_epi32(bytes)), factor));
    }
  }
}

constexpr BulkCodecs kCodecs = {
    .encode_bf16 = encode_bf16_row,
    .decode_bf16 = decode_bf16_row,
    .encode_e4m3 = encode_e4m3_row,
    .decode_e4m3 = decode_e4m3_row,
    .quantize_nvfp4_cache = quantize_nvfp4_cache_row,
    .dequantize_nvfp4_exact = dequantize_nvfp4_exact_row,
    .dequantize_nvfp4_e4m3 = dequantize_nvfp4_e4m3_row,
    .dequantize_nvfp4_e4m3_to_float = dequantize_nvfp4_e4m3_to_float_row,
    .quantize_nvfp4_weight = quantize_nvfp4_weight_row,
    .dequantize_nvfp4_weight = dequantize_nvfp4_weight_row,
    .quantize_mxfp8 = quantize_mxfp8_row,
    .dequantize_mxfp8 = dequantize_mxfp8_row,
};

}  // namespace

constinit const BulkCodecs* const kAvx512Codecs = &kCodecs;

}  // namespace winnow

#else

namespace winnow {
constinit const BulkCodecs* const kAvx512Codecs = nullptr;
}

#endif
