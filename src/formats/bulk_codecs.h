// Codecs over whole rows, one implementation per instruction set, equal to the bit. The scalar set
// is built from e4m3.h, nvfp4_cache.h, … and defines the others; bulk_codecs_test.cpp compares
// them.
//
// This header is included by files that are compiled for one instruction set, so it must hold
// declarations only: an inline function built with AVX-512 could be the copy the linker keeps.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): declarations only

namespace winnow {

enum class CpuIsa;

/// Row codecs. `n` counts values and is a multiple of the group where there are groups; rows need
/// no alignment. Nothing throws. Inputs may hold any float: a group with a NaN is stored as NaN
/// (scale NaN, codes 0), infinities saturate.
struct BulkCodecs {
  void (*encode_bf16)(const float* x, uint16_t* out, int64_t n);
  void (*decode_bf16)(const uint16_t* x, float* out, int64_t n);
  /// Saturating; see formats/e4m3.h.
  void (*encode_e4m3)(const float* x, uint8_t* out, int64_t n);
  void (*decode_e4m3)(const uint8_t* x, float* out, int64_t n);
  /// formats/nvfp4_cache.h: n / 2 code bytes and n / 16 scales.
  void (*quantize_nvfp4_cache)(const float* x, uint8_t* codes, uint8_t* scales, int64_t n);
  void (*dequantize_nvfp4_exact)(const uint8_t* codes, const uint8_t* scales, float* out,
                                 int64_t n);
  /// E4M3 bytes, and the same values as floats.
  void (*dequantize_nvfp4_e4m3)(const uint8_t* codes, const uint8_t* scales, uint8_t* out,
                                int64_t n);
  void (*dequantize_nvfp4_e4m3_to_float)(const uint8_t* codes, const uint8_t* scales, float* out,
                                         int64_t n);
  /// formats/nvfp4_weight.h.
  void (*quantize_nvfp4_weight)(const float* x, float global_scale, uint8_t* codes, uint8_t* scales,
                                int64_t n);
  void (*dequantize_nvfp4_weight)(const uint8_t* codes, const uint8_t* scales, float multiplier,
                                  float* out, int64_t n);
  /// formats/mxfp8.h: n element bytes and n / 32 scales.
  void (*quantize_mxfp8)(const float* x, uint8_t* elements, uint8_t* scales, int64_t n);
  void (*dequantize_mxfp8)(const uint8_t* elements, const uint8_t* scales, float* out, int64_t n);
};

/// The set for `isa`, or the best lower one that this build has. The caller checks that the machine
/// supports it (base/machine.h).
const BulkCodecs& bulk_codecs(CpuIsa isa);

/// Defined by one file each; null where the build has no such instruction set.
extern const BulkCodecs kScalarCodecs;
extern const BulkCodecs* const kAvx2Codecs;
extern const BulkCodecs* const kAvx512Codecs;

}  // namespace winnow
