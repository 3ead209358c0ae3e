// Row codecs with AVX2. Compiled for that alone: see bulk_codecs.h.
#include "formats/bulk_codecs.h"
#include "formats/dequant_table.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace winnow {

namespace {

constexpr int64_t kWidth = 8;   // floats of a register
constexpr int64_t kGroup = 16;  // values of an NVFP4 group

__m256i magnitude_bits(__m256 x) {
  return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

__m256i select(__m256i otherwise, __m256i mask, __m256i chosen) {
  return _mm256_blendv_epi8(otherwise, chosen, mask);
}

// formats/e4m3.h encode_e4m3, one code in the low byte of each lane.
__m256i encode_e4m3_lanes(__m256 x) {
  const __m256i magnitude = magnitude_bits(x);
  const __m256i is_nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  const __m256i capped = _mm256_min_epu32(magnitude, _mm256_set1_epi32(0x43E00000));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3C800000), capped);
  const __m256i subnormal = _mm256_sub_epi32(
      _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(capped), _mm256_set1_ps(16384.F))),
      _mm256_set1_epi32(0x46800000));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(capped, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(_mm256_add_epi32(capped, _mm256_set1_epi32(0x7FFFF)), odd);
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, 20), _mm256_set1_epi32(960));
  __m256i code = select(normal, is_small, subnormal);
  code = select(code, is_nan, _mm256_set1_epi32(0x7F));
  const __m256i sign =
      _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 24), _mm256_set1_epi32(0x80));
  return _mm256_or_si256(code, sign);
}

// formats/e4m3.h decode_e4m3 of the low byte of each lane.
__m256 decode_e4m3_lanes(__m256i code) {
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7F));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(0x80)), 24);
  const __m256i normal =
      _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
  const __m256 subnormal =
      _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(1.F / 512.F));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
  const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7F));
  __m256i bits = select(normal, is_small, _mm256_castps_si256(subnormal));
  bits = select(bits, is_nan, _mm256_set1_epi32(0x7FC00000));
  return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}

__m256i widen_bytes(const uint8_t* x) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
}

// The low byte of each of the 16 lanes, in order.
__m128i narrow_to_bytes(__m256i low, __m256i high) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

void encode_bf16_row(const float* x, uint16_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
    const __m256i is_nan = _mm256_cmpgt_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF)),
                                              _mm256_set1_epi32(0x7F800000));
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256i code = select(rounded, is_nan, quiet);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i),
        _mm_packus_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1)));
  }
  kScalarCodecs.encode_bf16(x + i, out + i, n - i);
}

void decode_bf16_row(const uint16_t* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const __m256i bits =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
    _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
  }
  kScalarCodecs.decode_bf16(x + i, out + i, n - i);
}

void encode_e4m3_row(const float* x, uint8_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + 2 * kWidth <= n; i += 2 * kWidth) {
    const __m256i low = encode_e4m3_lanes(_mm256_loadu_ps(x + i));
    const __m256i high = encode_e4m3_lanes(_mm256_loadu_ps(x + i + kWidth));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), narrow_to_bytes(low, high));
  }
  kScalarCodecs.encode_e4m3(x + i, out + i, n - i);
}

void decode_e4m3_row(const uint8_t* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    _mm256_storeu_ps(out + i, decode_e4m3_lanes(widen_bytes(x + i)));
  }
  kScalarCodecs.decode_e4m3(x + i, out + i, n - i);
}

// E2M1 codes of 8 values in units of `scale` (formats/e2m1.h ladder), one per lane. A NaN scale
// fails every comparison and so gives zero codes.
__m256i e2m1_lanes(__m256 x, float scale) {
  const __m256 magnitude = _mm256_castsi256_ps(magnitude_bits(x));
  __m256i code = _mm256_setzero_si256();
  // A true comparison is -1 in its lane.
  const auto count = [&code](__m256 compared) {
    code = _mm256_sub_epi32(code, _mm256_castps_si256(compared));
  };
  const auto times = [scale](float threshold) { return _mm256_set1_ps(threshold * scale); };
  count(_mm256_cmp_ps(magnitude, times(0.25F), _CMP_GT_OQ));
  count(_mm256_cmp_ps(magnitude, times(0.75F), _CMP_GE_OQ));
  count(_mm256_cmp_ps(magnitude, times(1.25F), _CMP_GT_OQ));
  count(_mm256_cmp_ps(magnitude, times(1.75F), _CMP_GE_OQ));
  count(_mm256_cmp_ps(magnitude, times(2.5F), _CMP_GT_OQ));
  count(_mm256_cmp_ps(magnitude, times(3.5F), _CMP_GE_OQ));
  count(_mm256_cmp_ps(magnitude, times(5.F), _CMP_GT_OQ));
  const __m256i sign =
      _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 28), _mm256_set1_epi32(8));
  const __m256i is_zero = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
  return _mm256_or_si256(code, _mm256_andnot_si256(is_zero, sign));
}

// Eight bytes, low nibble first.
void store_e2m1_group(__m256 low, __m256 high, float scale, uint8_t* codes) {
  const __m128i bytes = narrow_to_bytes(e2m1_lanes(low, scale), e2m1_lanes(high, scale));
  // Per 16-bit pair: value 2j in bits 0..3, value 2j+1 in bits 8..11, wanted in bits 4..7.
  const __m128i pairs =
      _mm_and_si128(_mm_or_si128(bytes, _mm_srli_epi16(bytes, 4)), _mm_set1_epi16(0xFF));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(codes), _mm_packus_epi16(pairs, pairs));
}

uint32_t max_bits(__m256i low, __m256i high) {
  const __m256i both = _mm256_max_epu32(low, high);
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// Quantises up to 8 groups at a time so that their scales fill one register.
template <bool is_cache>
void quantize_nvfp4(const float* x, float global_scale, uint8_t* codes, uint8_t* scales,
                    int64_t n) {
  const int64_t num_groups = n / kGroup;
  const __m256 global = _mm256_set1_ps(global_scale);
  const auto load = [&](int64_t group, int64_t half) {
    const __m256 values = _mm256_loadu_ps(x + group * kGroup + half * kWidth);
    return is_cache ? values : _mm256_mul_ps(values, global);
  };
  for (int64_t begin = 0; begin < num_groups; begin += kWidth) {
    const int64_t count = num_groups - begin < kWidth ? num_groups - begin : kWidth;
    alignas(32) uint32_t max_magnitude[kWidth] = {};
    for (int64_t g = 0; g < count; ++g) {
      max_magnitude[g] =
          max_bits(magnitude_bits(load(begin + g, 0)), magnitude_bits(load(begin + g, 1)));
    }
    const __m256 max =
        _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(max_magnitude)));
    const __m256 sixth = _mm256_div_ps(max, _mm256_set1_ps(6.F));
    // max and min return their second operand when one is NaN, so a NaN reaches the encoder.
    const __m256 clamped = is_cache
                               ? _mm256_min_ps(_mm256_set1_ps(448.F),
                                               _mm256_max_ps(_mm256_set1_ps(1.F / 512.F), sixth))
                               : sixth;
    const __m256i scale_codes = encode_e4m3_lanes(clamped);
    alignas(32) uint32_t scale_code[kWidth];
    alignas(32) float scale[kWidth];
    _mm256_store_si256(reinterpret_cast<__m256i*>(scale_code), scale_codes);
    // A weight group whose scale rounded to 0 stores zero codes: NaN has that effect below.
    const __m256i is_zero = _mm256_cmpeq_epi32(scale_codes, _mm256_setzero_si256());
    const __m256i decoded = _mm256_castps_si256(decode_e4m3_lanes(scale_codes));
    _mm256_store_ps(scale,
                    _mm256_castsi256_ps(select(decoded, is_zero, _mm256_set1_epi32(0x7FC00000))));
    for (int64_t g = 0; g < count; ++g) {
      scales[begin + g] = static_cast<uint8_t>(scale_code[g]);
      store_e2m1_group(load(begin + g, 0), load(begin + g, 1), scale[g],
                       codes + (begin + g) * (kGroup / 2));
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

// The 16 nibbles of a group as bytes, in order.
__m128i nibbles_of(const uint8_t* codes) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  const __m128i mask = _mm_set1_epi8(0xF);
  return _mm_unpacklo_epi8(_mm_and_si128(bytes, mask),
                           _mm_and_si128(_mm_srli_epi16(bytes, 4), mask));
}

// Signed values of the low 8 nibble bytes: magnitude by permute, sign by XOR (code 8 is -0).
__m256 e2m1_values(__m128i nibbles) {
  const __m256 table = _mm256_setr_ps(0.F, 0.5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F);
  const __m256i lanes = _mm256_cvtepu8_epi32(nibbles);
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(lanes, _mm256_set1_epi32(8)), 28);
  // permutevar8x32 reads the low three bits of each lane only.
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, lanes), _mm256_castsi256_ps(sign));
}

float scale_value(uint8_t code) {
  return _mm256_cvtss_f32(decode_e4m3_lanes(_mm256_set1_epi32(code)));
}

void dequantize_nvfp4_exact_row(const uint8_t* codes, const uint8_t* scales, float* out,
                                int64_t n) {
  for (int64_t g = 0; g < n / kGroup; ++g) {
    const __m128i nibbles = nibbles_of(codes + g * (kGroup / 2));
    const __m256 scale = _mm256_set1_ps(scale_value(scales[g] & 0x7F));
    _mm256_storeu_ps(out + g * kGroup, _mm256_mul_ps(e2m1_values(nibbles), scale));
    _mm256_storeu_ps(out + g * kGroup + kWidth,
                     _mm256_mul_ps(e2m1_values(_mm_unpackhi_epi64(nibbles, nibbles)), scale));
  }
}

void dequantize_nvfp4_weight_row(const uint8_t* codes, const uint8_t* scales, float multiplier,
                                 float* out, int64_t n) {
  const __m256 factor = _mm256_set1_ps(multiplier);
  for (int64_t g = 0; g < n / kGroup; ++g) {
    const __m128i nibbles = nibbles_of(codes + g * (kGroup / 2));
    const __m256 scale = _mm256_set1_ps(scale_value(scales[g]));
    const __m256 low = _mm256_mul_ps(e2m1_values(nibbles), scale);
    const __m256 high = _mm256_mul_ps(e2m1_values(_mm_unpackhi_epi64(nibbles, nibbles)), scale);
    _mm256_storeu_ps(out + g * kGroup, _mm256_mul_ps(low, factor));
    _mm256_storeu_ps(out + g * kGroup + kWidth, _mm256_mul_ps(high, factor));
  }
}

// E4M3 bytes of one group: the table row of the scale, looked up by magnitude, sign by XOR.
__m128i e4m3_group(const uint8_t* codes, uint8_t scale) {
  const auto* table = reinterpret_cast<const uint8_t*>(&kDequantTable);
  const __m128i row = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table + int64_t{scale} * 8));
  const __m128i nibbles = nibbles_of(codes);
  const __m128i magnitudes = _mm_shuffle_epi8(row, _mm_and_si128(nibbles, _mm_set1_epi8(7)));
  // The four bits hold 8 = sign; shifted left by four within 16-bit lanes it is bit 7 of the byte.
  const __m128i signs = _mm_slli_epi16(_mm_and_si128(nibbles, _mm_set1_epi8(8)), 4);
  return _mm_xor_si128(magnitudes, signs);
}

void dequantize_nvfp4_e4m3_row(const uint8_t* codes, const uint8_t* scales, uint8_t* out,
                               int64_t n) {
  for (int64_t g = 0; g < n / kGroup; ++g) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + g * kGroup),
                     e4m3_group(codes + g * (kGroup / 2), scales[g]));
  }
}

void dequantize_nvfp4_e4m3_to_float_row(const uint8_t* codes, const uint8_t* scales, float* out,
                                        int64_t n) {
  for (int64_t g = 0; g < n / kGroup; ++g) {
    const __m128i bytes = e4m3_group(codes + g * (kGroup / 2), scales[g]);
    _mm256_storeu_ps(out + g * kGroup, decode_e4m3_lanes(_mm256_cvtepu8_epi32(bytes)));
    _mm256_storeu_ps(out + g * kGroup + kWidth,
                     decode_e4m3_lanes(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))));
  }
}

void quantize_mxfp8_row(const float* x, uint8_t* elements, uint8_t* scales, int64_t n) {
  for (int64_t g = 0; g < n / 32; ++g) {
    __m256 values[4];
    for (int64_t q = 0; q < 4; ++q) values[q] = _mm256_loadu_ps(x + g * 32 + q * kWidth);
    const uint32_t bits =
        max_bits(_mm256_max_epu32(magnitude_bits(values[0]), magnitude_bits(values[1])),
                 _mm256_max_epu32(magnitude_bits(values[2]), magnitude_bits(values[3])));
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
    const __m256 inverse = _mm256_castsi256_ps(_mm256_set1_epi32((254 - scale) << 23));
    for (int64_t half = 0; half < 2; ++half) {
      const __m256i low = encode_e4m3_lanes(_mm256_mul_ps(values[2 * half], inverse));
      const __m256i high = encode_e4m3_lanes(_mm256_mul_ps(values[2 * half + 1], inverse));
      _mm_storeu_si128(out + half, narrow_to_bytes(low, high));
    }
  }
}

void dequantize_mxfp8_row(const uint8_t* elements, const uint8_t* scales, float* out, int64_t n) {
  for (int64_t g = 0; g < n / 32; ++g) {
    const int scale = scales[g];
    const int bits = scale == 255 ? 0x7FC00000 : scale == 0 ? 0x00400000 : scale << 23;
    const __m256 factor = _mm256_castsi256_ps(_mm256_set1_epi32(bits));
    for (int64_t i = g * 32; i < g * 32 + 32; i += kWidth) {
      _mm256_storeu_ps(out + i,
                       _mm256_mul_ps(decode_e4m3_lanes(widen_bytes(elements + i)), factor));
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

constinit const BulkCodecs* const kAvx2Codecs = &kCodecs;

}  // namespace winnow

#else

namespace winnow {
constinit const BulkCodecs* const kAvx2Codecs = nullptr;
}

#endif
