// One block of 128 cached vectors of 128 values, from the bytes of a cache plane to a wgmma operand
// in shared memory: 16-bit values, [2 halves of 64 places][128 tokens][128 bytes] in the 128-byte
// swizzle. Keys become a K-major operand (tokens on N) whose places follow key_dim(); values become
// an MN-major operand (dims on N) with their dims in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/ptx.cuh"

namespace winnow::cuda {

inline constexpr int kOperandBytes = kFastBlockTokens * kFastDim * 2;
inline constexpr int kOperandHalfBytes = kOperandBytes / 2;
inline constexpr int kMagnitudeTableBytes = 256 * 8;

constexpr int page_data_bytes(CacheFormat format) {
  return kFastBlockTokens * vector_bytes(format);
}
constexpr int page_scale_bytes(CacheFormat format) {
  return kFastBlockTokens * vector_scale_bytes(format);
}
constexpr int page_bytes(CacheFormat format) {
  return page_data_bytes(format) + page_scale_bytes(format);
}

/// Starts the copy of a page's data and scales to `raw`, by one thread; one arrival.
template <CacheFormat F>
__device__ __forceinline__ void load_page(std::uint32_t raw, const std::byte* data,
                                          const std::byte* scales, std::uint32_t barrier) {
  ptx::mbarrier_arrive_expect_tx(barrier, page_bytes(F));
  ptx::cp_async_bulk(raw, data, page_data_bytes(F), barrier);
  if constexpr (is_nvfp4(F)) {
    ptx::cp_async_bulk(raw + page_data_bytes(F), scales, page_scale_bytes(F), barrier);
  }
}

/// bf16: copies share `share` of kShares of token `token`.
template <int kShares>
__device__ __forceinline__ void copy_token(const std::byte* raw, int token, int share,
                                           std::byte* operand) {
  // n → α n in GF(8): both n ↦ αn and n ↦ αn ^ n are one to one, so that the eight lanes of a
  // phase use different banks to read and to write.
  const int n = token & 7;
  const int rotated = ((n >> 1) & 1) << 2 | ((n ^ (n >> 2)) & 1) << 1 | (n >> 2);
#pragma unroll 4
  for (int i = 0; i < 16 / kShares; ++i) {
    const int j = share * (16 / kShares) + i;
    const int chunk = (j & 8) | ((j & 7) ^ rotated);
    *reinterpret_cast<uint4*>(operand + (chunk >> 3) * kOperandHalfBytes + token * 128 +
                              (((chunk & 7) ^ n) << 4)) =
        *reinterpret_cast<const uint4*>(raw + token * 256 + chunk * 16);
  }
}

/// Converts `kTokens` keys from `first` on (both multiples of 8) by one warp: the lanes of a quad
/// share a key, a quarter each, as in mma fragments.
template <CacheFormat F, int kTokens>
__device__ __forceinline__ void convert_keys(const std::byte* raw, const uint2* table, int first,
                                             std::byte* operand) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  if constexpr (F == CacheFormat::kBf16) {
#pragma unroll 1
    for (int t = lane; t < kTokens * 2; t += 32) {
      copy_token<2>(raw, first + t % kTokens, t / kTokens, operand);
    }
  } else {
    const int c = lane & 3;
#pragma unroll 1
    for (int i = 0; i < kTokens / 8; ++i) {
      const int token = first + i * 8 + lane / 4;
      KeyFragment key;
      if constexpr (is_nvfp4(F)) {
        const uint4 codes = *reinterpret_cast<const uint4*>(raw + token * 64 + c * 16);
        const std::uint32_t scales =
            *reinterpret_cast<const std::uint16_t*>(raw + page_data_bytes(F) + token * 8 + c * 2);
        expand_key<F>(codes, scales, table, key);
      } else {
        const std::byte* const bytes = raw + token * 128 + c * 32;
        expand_fp8_key(*reinterpret_cast<const uint4*>(bytes),
                       *reinterpret_cast<const uint4*>(bytes + 16), key);
      }
      std::byte* const row = operand + token * 128 + c * 4;
#pragma unroll
      for (int chunk = 0; chunk < 16; ++chunk) {
        *reinterpret_cast<std::uint32_t*>(row + (chunk >> 3) * kOperandHalfBytes +
                                          (((chunk & 7) ^ (token & 7)) << 4)) =
            key.operands[chunk / 2][chunk % 2];
      }
    }
  }
}

/// Converts share `share` of kShares (1, 2 or 4) of the value of token `token`, one a thread;
/// tokens that are not `is_written` become zeros. Orders rotate with the token so that the eight
/// lanes of a shared-memory phase use different banks on both sides.
template <CacheFormat F, int kShares>
__device__ __forceinline__ void convert_value(const std::byte* raw, const uint2* table, int token,
                                              int share, bool is_written, std::byte* operand) {
  std::byte* const row = operand + token * 128;
  const int swizzle = token & 7;
  // 16 bytes of the operand: dims 8 chunk … 8 chunk + 7.
  const auto store = [&](int chunk, uint4 values) {
    *reinterpret_cast<uint4*>(row + (chunk >> 3) * kOperandHalfBytes +
                              (((chunk & 7) ^ swizzle) << 4)) = values;
  };
  if (!is_written) {
#pragma unroll
    for (int j = 0; j < 16 / kShares; ++j) {
      store(share * (16 / kShares) + j, make_uint4(0, 0, 0, 0));
    }
    return;
  }
  if constexpr (is_nvfp4(F)) {
    const std::byte* const codes = raw + token * 64;
    const std::byte* const scales = raw + page_data_bytes(F) + token * 8;
#pragma unroll
    for (int j = 0; j < 4 / kShares; ++j) {
      const int part = (j + share * (4 / kShares) + (token >> 1)) & 3;  // 32 dims
      const uint4 words = *reinterpret_cast<const uint4*>(codes + part * 16);
      const std::uint32_t two = *reinterpret_cast<const std::uint16_t*>(scales + part * 2);
      GroupScale<F> first, second;
      load_group_scales<F>(two, table, first, second);
      const std::uint32_t codes_of[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t values[4];
        expand_nvfp4<F>(codes_of[i], i < 2 ? first : second, values);
        store(part * 4 + i, make_uint4(values[0], values[1], values[2], values[3]));
      }
    }
  } else if constexpr (F == CacheFormat::kFp8) {
    const std::byte* const bytes = raw + token * 128;
#pragma unroll
    for (int j = 0; j < 8 / kShares; ++j) {
      const int part = (j + share * (8 / kShares) + token) & 7;  // 16 dims
      const uint4 words = *reinterpret_cast<const uint4*>(bytes + part * 16);
      std::uint32_t low[2], high[2];
      expand_fp8(words.x, low);
      expand_fp8(words.y, high);
      store(part * 2, make_uint4(low[0], low[1], high[0], high[1]));
      expand_fp8(words.z, low);
      expand_fp8(words.w, high);
      store(part * 2 + 1, make_uint4(low[0], low[1], high[0], high[1]));
    }
  } else {
    copy_token<kShares>(raw, token, share, operand);
  }
}

}  // namespace winnow::cuda
