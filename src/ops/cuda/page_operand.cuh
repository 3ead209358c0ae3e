// One block of 128 cached vectors of 128 values, from the bytes of a cache plane to a wgmma operand
// in shared memory: 16-bit values, [2 halves of 64 places][128 tokens][128 bytes] in the 128-byte
// swizzle. Keys become a K-major operand (tokens on N) whose places follow operand_dim(); values
// become an MN-major operand (dims on N) with their dims in order.
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

/// The dim at place r of k16 step `step` of a key operand: those of key_dim(), but what a lane of a
/// quad feeds lies side by side. (A step's sum does not depend on the order of its places: equal
/// bits on Hopper.)
__host__ __device__ constexpr int operand_dim(CacheFormat format, int step, int r) {
  if (format == CacheFormat::kBf16) return 16 * step + r;
  return 32 * (r / 4) + 4 * step + r % 4;
}
/// Where in its 128 bytes of the swizzled operand a row (modulo 8) has the four values that quarter
/// `quarter` of a vector adds to step `step` (modulo 4). Not of bf16.
__device__ __forceinline__ int key_place(int row, int quarter, int step) {
  return ((2 * step + (quarter >> 1)) ^ row) << 4 | (quarter & 1) << 3;
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

/// Copies or converts keys by one warp: `kTokens` of them (a multiple of 8) from `first` on (too).
/// The lanes of a quad share a key, a quarter each, as in mma fragments; the quads' keys are so
/// ordered that 16 lanes store to different banks. Constructed once a thread: where its words go
/// does not depend on the page.
template <CacheFormat F, int kTokens>
class KeyConverter {
 public:
  __device__ __forceinline__ explicit KeyConverter(int first) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int quad = lane / 4;
    // Token & 7, by quad: 0, 3, 4, 7, 1, 2, 5, 6.
    const int n = ((quad & 2) << 1) | (((quad & 1) * 3) ^ (quad >> 2));
    const int c = lane & 3;
    from_ = (first + n) * vector_bytes(F) + c * (vector_bytes(F) / 4);
    scales_ = page_data_bytes(F) + (first + n) * 8 + c * 2;
    if constexpr (F == CacheFormat::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to_[i] = (first + n) * 128 + (((2 * c + i % 2) ^ n) << 4);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) to_[i] = (first + n) * 128 + key_place(n, c, i);
    }
  }

  __device__ __forceinline__ void operator()(const std::byte* raw, const uint2* table,
                                             std::byte* operand) const {
    if constexpr (F == CacheFormat::kBf16) {
      // Lane c copies chunks 2c, 2c + 1 of either half of a row of 16.
#pragma unroll
      for (int i = 0; i < kTokens / 8; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto* const from = reinterpret_cast<const uint4*>(
              raw + from_ - (static_cast<int>(threadIdx.x) & 3) * 32 + i * 2048 + half * 128);
          const uint4 x = from[0];
          const uint4 y = from[1];
          *reinterpret_cast<uint4*>(operand + to_[0] + i * 1024 + half * kOperandHalfBytes) = x;
          *reinterpret_cast<uint4*>(operand + to_[1] + i * 1024 + half * kOperandHalfBytes) = y;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTokens / 8; ++i) {
        KeyFragment key;
        const std::byte* const from = raw + from_ + i * 8 * vector_bytes(F);
        if constexpr (is_nvfp4(F)) {
          const std::uint32_t scales =
              *reinterpret_cast<const std::uint16_t*>(raw + scales_ + i * 64);
          expand_key<F>(*reinterpret_cast<const uint4*>(from), scales, table, key);
        } else if constexpr (F == CacheFormat::kFp8) {
          expand_fp8_key(*reinterpret_cast<const uint4*>(from),
                         *reinterpret_cast<const uint4*>(from + 16), key);
        }
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          *reinterpret_cast<uint2*>(operand + to_[step % 4] + i * 1024 +
                                    step / 4 * kOperandHalfBytes) =
              make_uint2(key.operands[step][0], key.operands[step][1]);
        }
      }
    }
  }

 private:
  int from_;
  int scales_;
  int to_[4];
};

/// Copies or converts one token's values, one token a thread (of 128). Orders rotate with the token
/// so that the eight lanes of a shared-memory phase use different banks on both sides.
template <CacheFormat F>
class ValueConverter {
 public:
  __device__ __forceinline__ explicit ValueConverter(int token) : token_(token) {
    const int n = token & 7;
#pragma unroll
    for (int i = 0; i < 4; ++i) to_[i] = token * 128 + ((i ^ (n & 3)) << 4);
  }

  /// A token that is not `is_written` becomes zeros.
  __device__ __forceinline__ void operator()(const std::byte* raw, const uint2* table,
                                             bool is_written, std::byte* operand) const {
    if (!is_written) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        *reinterpret_cast<uint4*>(operand + token_ * 128 + (i % 8) * 16 +
                                  i / 8 * kOperandHalfBytes) = make_uint4(0, 0, 0, 0);
      }
      return;
    }
    const std::byte* const from = raw + token_ * vector_bytes(F);
    if constexpr (is_nvfp4(F)) {
      const std::byte* const scales = raw + page_data_bytes(F) + token_ * 8;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int part = (j + (token_ >> 1)) & 3;  // 32 dims
        const uint4 words = *reinterpret_cast<const uint4*>(from + part * 16);
        GroupScale<F> first, second;
        load_group_scales<F>(*reinterpret_cast<const std::uint16_t*>(scales + part * 2), table,
                             first, second);
        std::byte* const to =
            operand + (part >> 1) * kOperandHalfBytes + (((part << 2) ^ token_) & 4) * 16;
        const std::uint32_t codes[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          std::uint32_t values[4];
          expand_nvfp4<F>(codes[i], i < 2 ? first : second, values);
          *reinterpret_cast<uint4*>(to + to_[i]) =
              make_uint4(values[0], values[1], values[2], values[3]);
        }
      }
    } else if constexpr (F == CacheFormat::kFp8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int part = (j + token_) & 7;  // 16 dims
        const uint4 words = *reinterpret_cast<const uint4*>(from + part * 16);
        std::uint32_t a[2], b[2], c[2], d[2];
        expand_fp8(words.x, a);
        expand_fp8(words.y, b);
        expand_fp8(words.z, c);
        expand_fp8(words.w, d);
        std::byte* const to = operand + (part >> 2) * kOperandHalfBytes + token_ * 128;
        const int chunk = (part & 3) * 2;
        *reinterpret_cast<uint4*>(to + ((chunk ^ (token_ & 7)) << 4)) =
            make_uint4(a[0], a[1], b[0], b[1]);
        *reinterpret_cast<uint4*>(to + (((chunk + 1) ^ (token_ & 7)) << 4)) =
            make_uint4(c[0], c[1], d[0], d[1]);
      }
    } else {
      // n → α n in GF(8): both n ↦ αn and n ↦ αn ^ n are one to one.
      const int n = token_ & 7;
      const int rotated = ((n >> 1) & 1) << 2 | ((n ^ (n >> 2)) & 1) << 1 | (n >> 2);
#pragma unroll 4
      for (int j = 0; j < 16; ++j) {
        const int chunk = (j & 8) | ((j & 7) ^ rotated);
        *reinterpret_cast<uint4*>(operand + (chunk >> 3) * kOperandHalfBytes + token_ * 128 +
                                  (((chunk & 7) ^ n) << 4)) =
            *reinterpret_cast<const uint4*>(from + chunk * 16);
      }
    }
  }

 private:
  int token_;
  int to_[4];
};

}  // namespace winnow::cuda
