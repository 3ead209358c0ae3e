// One part of a token's attention: up to 16 query heads of one KV head against some blocks in
// ascending order, by a CTA of four warps. Sums and their order: ops/cuda/cache_fragments.cuh.
//
// Per block: each warp scores 32 keys (queries are the M side, in registers; a lane dequantises its
// quarter of a key straight into an operand), the warps exchange maxima, V is dequantised into a
// swizzled fp16 tile and P stored beside it, then each warp adds 32 dims. Two barriers a block. K
// and V of a block are one half each of a ring of three that the copy engine fills.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"

namespace winnow::cuda {

inline constexpr int kPartWarps = 4;
inline constexpr int kPartThreads = 32 * kPartWarps;
inline constexpr int kPartHeads = 16;

template <CacheFormat F>
struct HalfBlock {
  // bf16 is read by ldmatrix as it lies; its rows are padded against bank conflicts.
  static constexpr int kRowBytes = F == CacheFormat::kBf16 ? 2 * kFastDim + 16 : vector_bytes(F);
  static constexpr int kScaleOffset = kFastBlockTokens * kRowBytes;
  static constexpr int kBytes = kScaleOffset + kFastBlockTokens * vector_scale_bytes(F);
  static constexpr int kCopied = kFastBlockTokens * (vector_bytes(F) + vector_scale_bytes(F));
  static constexpr int kSlots = 3;
};

template <CacheFormat F>
struct PartShared {
  alignas(128) std::byte slots[HalfBlock<F>::kSlots][HalfBlock<F>::kBytes];
  // fp16 [128 keys][128 dims], swizzled; then the part's outputs, [16 heads][128 dims] fp32.
  alignas(128) std::byte
      values[F == CacheFormat::kBf16 ? kPartHeads * kFastDim * 4 : kFastBlockTokens * kFastDim * 2];
  alignas(128) std::byte weights[kPartHeads * kFastBlockTokens * 2];  // P, swizzled
  uint2 table[F == CacheFormat::kNvfp4E4m3 ? 256 : 1];
  float warp_maxima[kPartWarps][kPartHeads];
  float sums[kPartWarps][kPartHeads][4];
  float maximum[kPartHeads];  // of the part
  float sum[kPartHeads];
  std::uint64_t full[HalfBlock<F>::kSlots];
};

/// Byte of 16-byte unit `unit` of row `row` in a swizzled tile of 256-byte rows: neither eight rows
/// of one unit nor two rows of every fourth unit share a bank. Of a row only its low three bits
/// matter here, the caller adds 256 · row: so an address is a base of the thread, in which `unit`'s
/// constant bits toggle bits, and constants.
__device__ __forceinline__ std::uint32_t swizzled(int row, int unit) {
  return static_cast<std::uint32_t>((unit & 8) * 16 + (((unit ^ row ^ (unit >> 2 & 2)) & 7) * 16));
}

template <CacheFormat F>
class PartAttention {
 public:
  /// Queries at `position` against KV head `kv_head`.
  __device__ PartAttention(const CachePlanes& planes, int kv_head, std::int32_t position,
                           float factor, PartShared<F>& shared)
      : planes_(planes),
        kv_head_(kv_head),
        position_(position),
        factor_(factor),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        weight_store_(static_cast<std::uint32_t>(lane_ / 4 * 256 + lane_ % 4 * 4) +
                      swizzled(lane_ / 4, 4 * warp_)) {
    if (threadIdx.x == 0) {
      for (int s = 0; s < H::kSlots; ++s) ptx::mbarrier_init(barrier(s), 1);
      ptx::fence_mbarrier_init();
    }
    if constexpr (F == CacheFormat::kNvfp4E4m3) {
      fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), kPartThreads);
    }
    __syncthreads();
  }

  /// Starts to read the blocks in pool rows `row`, one per lane, the same in every warp.
  __device__ void prefetch(std::int32_t row, int count) {
    first_half_ += num_halves_;
    num_halves_ = 2 * count;
#pragma unroll
    for (int half = 0; half < H::kSlots; ++half) copy(half, row);
  }

  /// Rows of the `heads` query heads; the others are 0.
  __device__ void load_queries(const float* q, int heads) {
    const int c = lane_ % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = lane_ / 4 + 8 * i;
      const float* const row = q + std::int64_t{head} * kFastDim;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float2 low{}, high{};
        if (head < heads) {
          constexpr int kStep = key_dim(F, 0, 2) - key_dim(F, 0, 0);
          low = *reinterpret_cast<const float2*>(row + key_dim(F, j, 0) + kStep * c);
          high = *reinterpret_cast<const float2*>(row + key_dim(F, j, 8) + kStep * c);
        }
        queries_[j][i] = pack_operands<F>(low.x, low.y);
        queries_[j][2 + i] = pack_operands<F>(high.x, high.y);
      }
    }
  }

  /// Blocks `block` (logical), after prefetch() of their rows; leaves the part's outputs, maximum
  /// and sum in shared memory, behind a barrier. count ≥ 1. The next run() needs a barrier after
  /// they were read.
  __device__ void run(std::int32_t block, std::int32_t row, int count) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum_[r] = kNegativeInfinity;
      sum_[r] = 0.0F;
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) outputs_[t][i] = 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const std::int32_t begin = __shfl_sync(0xFFFFFFFFU, block, i) * kFastBlockTokens;
      add_block(i, min(kFastBlockTokens, position_ - begin + 1), row);
    }
    write_part();
  }

 private:
  using H = HalfBlock<F>;

  __device__ std::uint32_t barrier(int slot) const {
    return ptx::shared_address(&shared_.full[slot]);
  }
  __device__ const std::byte* wait(int half) const {
    const int slot = (first_half_ + half) % H::kSlots;
    const int round = (first_half_ + half) / H::kSlots;
    ptx::mbarrier_wait_parity(barrier(slot), static_cast<std::uint32_t>(round) & 1U);
    return shared_.slots[slot];
  }

  /// K (even) or V (odd) of block half / 2.
  __device__ void copy(int half, std::int32_t rows) {
    if (half >= num_halves_) return;
    const int slot = (first_half_ + half) % H::kSlots;
    const HeadPlanes& plane = half % 2 == 0 ? planes_.k : planes_.v;
    const std::uint32_t target = ptx::shared_address(shared_.slots[slot]);
    if constexpr (F == CacheFormat::kBf16) {
      const std::byte* const base = planes_.row(__shfl_sync(0xFFFFFFFFU, rows, half / 2));
      if (warp_ != 0) return;  // one warp, so that the expectation precedes the copies
      if (lane_ == 0) ptx::mbarrier_arrive_expect_tx(barrier(slot), H::kCopied);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = lane_ + 32 * i;
        ptx::cp_async_bulk(target + static_cast<std::uint32_t>(token * H::kRowBytes),
                           base + plane.data(kv_head_, token), vector_bytes(F), barrier(slot));
      }
    } else {
      if (warp_ != 0) return;
      const std::byte* const base = planes_.row(__shfl_sync(0xFFFFFFFFU, rows, half / 2));
      if (lane_ != 0) return;
      ptx::mbarrier_arrive_expect_tx(barrier(slot), H::kCopied);
      ptx::cp_async_bulk(target, base + plane.data(kv_head_, 0), H::kScaleOffset, barrier(slot));
      if constexpr (is_nvfp4(F)) {
        ptx::cp_async_bulk(target + H::kScaleOffset, base + plane.scales(kv_head_, 0),
                           kFastBlockTokens * vector_scale_bytes(F), barrier(slot));
      }
    }
  }

  __device__ void add_block(int index, int num_keys, std::int32_t rows) {
    float scores[4][4];
    score(wait(2 * index), scores);
    mask(num_keys, scores);
    write_maxima(scores);
    __syncthreads();  // also: nobody reads the values, the weights or K of this block any more
    copy(2 * index + H::kSlots, rows);
    const std::byte* const v = wait(2 * index + 1);
    expand_values(v, num_keys);
    float alpha[2];
    exponentiate(num_keys, scores, alpha);
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) outputs_[t][i] *= alpha[i / 2];
    }
    __syncthreads();
    if constexpr (F != CacheFormat::kBf16) copy(2 * index + 1 + H::kSlots, rows);
    add_values(v);
    if constexpr (F == CacheFormat::kBf16) {
      __syncthreads();
      copy(2 * index + 1 + H::kSlots, rows);
    }
  }

  /// Keys 32 · warp + 8t + …, t < 4.
  __device__ __forceinline__ void score(const std::byte* k, float (&scores)[4][4]) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] = 0.0F;
      const int key = 32 * warp_ + 8 * t + lane_ / 4;
      if constexpr (F == CacheFormat::kBf16) {
        // Matrices: positions 0-7, 8-15 of steps j and j + 1.
        const std::uint32_t address =
            ptx::shared_address(k) +
            static_cast<std::uint32_t>((32 * warp_ + 8 * t + lane_ % 8) * H::kRowBytes +
                                       lane_ / 8 * 16);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          std::uint32_t keys[4];
          ptx::ldmatrix_x4(keys, address + static_cast<std::uint32_t>(j * 32));
          mma<F>(scores[t], queries_[j], keys[0], keys[1]);
          mma<F>(scores[t], queries_[j + 1], keys[2], keys[3]);
        }
      } else {
        KeyFragment fragment;
        load_key(k, key, fragment);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          mma<F>(scores[t], queries_[j], fragment.operands[j][0], fragment.operands[j][1]);
        }
      }
    }
  }

  __device__ __forceinline__ void load_key(const std::byte* k, int key, KeyFragment& fragment) {
    const int c = lane_ % 4;
    const std::byte* const row = k + key * H::kRowBytes;
    if constexpr (F == CacheFormat::kFp8) {
      const uint4* const quarter = reinterpret_cast<const uint4*>(row + 32 * c);
      expand_fp8_key(quarter[0], quarter[1], fragment);
    } else if constexpr (is_nvfp4(F)) {
      const uint4 codes = *reinterpret_cast<const uint4*>(row + 16 * c);
      const std::uint32_t scales = *reinterpret_cast<const std::uint16_t*>(
          k + H::kScaleOffset + key * vector_scale_bytes(F) + 2 * c);
      expand_key<F>(codes, scales, shared_.table, fragment);
    }
  }

  __device__ int key_of(int t, int i) const { return 32 * warp_ + 8 * t + 2 * (lane_ % 4) + i; }

  __device__ __forceinline__ void mask(int num_keys, float (&scores)[4][4]) {
    if (num_keys >= kFastBlockTokens) return;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (key_of(t, i % 2) >= num_keys) scores[t][i] = kNegativeInfinity;
      }
    }
  }

  __device__ __forceinline__ void write_maxima(const float (&scores)[4][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = kNegativeInfinity;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        best = fmaxf(best, fmaxf(scores[t][2 * r], scores[t][2 * r + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 2));
      if (lane_ % 4 == 0) shared_.warp_maxima[warp_][lane_ / 4 + 8 * r] = best;
    }
  }

  /// New maxima, P into shared memory, the sums of this warp's parts; `alpha` scales what was.
  __device__ __forceinline__ void exponentiate(int num_keys, const float (&scores)[4][4],
                                               float (&alpha)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane_ / 4 + 8 * r;
      float larger = maximum_[r];
#pragma unroll
      for (int w = 0; w < kPartWarps; ++w) larger = fmaxf(larger, shared_.warp_maxima[w][head]);
      alpha[r] = rescale(maximum_[r], larger, factor_);
      maximum_[r] = larger;
      const float scaled = __fmul_rn(larger, factor_);
      float sum = 0.0F;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        float p[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          p[i] = probability(scores[t][2 * r + i], scaled, factor_);
          if (num_keys < kFastBlockTokens && key_of(t, i) >= num_keys) p[i] = 0.0F;
          sum += p[i];
        }
        *reinterpret_cast<std::uint32_t*>(shared_.weights +
                                          ((weight_store_ ^ (16U * t)) + 2048U * r)) =
            pack_operands<F>(p[0], p[1]);
      }
      sum_[r] = __fmaf_rn(sum_[r], alpha[r], sum);
    }
  }

  /// V into the tile of operands; rows from num_keys on become 0, whatever they hold.
  __device__ __forceinline__ void expand_values(const std::byte* v, int num_keys) {
    if constexpr (F == CacheFormat::kBf16) {
      if (num_keys >= kFastBlockTokens) return;
      auto* const rows = const_cast<std::byte*>(v);
      const int token = static_cast<int>(threadIdx.x);
      if (token < num_keys) return;
      for (int unit = 0; unit < 16; ++unit) {
        *reinterpret_cast<uint4*>(rows + token * H::kRowBytes + 16 * unit) = uint4{};
      }
      ptx::fence_proxy_async();
    } else {
      // 16 bytes of codes (nvfp4) or of values (fp8) at a time.
      constexpr int kUnits = vector_bytes(F) / 16;
      constexpr int kOutUnits = 16 / kUnits;
      const int thread = static_cast<int>(threadIdx.x);
      const std::uint32_t target = 256U * static_cast<std::uint32_t>(thread / kUnits) +
                                   swizzled(thread / kUnits, kOutUnits * (thread % kUnits));
#pragma unroll 2
      for (int i = 0; i < kUnits; ++i) {
        constexpr int kRowsApart = kPartThreads / kUnits;
        const int token = thread / kUnits + kRowsApart * i;
        const int unit = thread % kUnits;
        const uint4 codes = *reinterpret_cast<const uint4*>(v + token * H::kRowBytes + 16 * unit);
        const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        uint4 out[kOutUnits];
        if constexpr (F == CacheFormat::kFp8) {
#pragma unroll
          for (int u = 0; u < 2; ++u) {
            std::uint32_t a[2], b[2];
            expand_fp8(words[2 * u], a);
            expand_fp8(words[2 * u + 1], b);
            out[u] = {a[0], a[1], b[0], b[1]};
          }
        } else {
          const std::uint32_t scales = *reinterpret_cast<const std::uint16_t*>(
              v + H::kScaleOffset + token * vector_scale_bytes(F) + 2 * unit);
          GroupScale<F> groups[2];
          load_group_scales<F>(scales, shared_.table, groups[0], groups[1]);
#pragma unroll
          for (int u = 0; u < 4; ++u) {
            std::uint32_t a[4];
            expand_nvfp4<F>(words[u], groups[u / 2], a);
            out[u] = {a[0], a[1], a[2], a[3]};
          }
        }
#pragma unroll
        for (int u = 0; u < kOutUnits; ++u) {
          *reinterpret_cast<uint4*>(shared_.values +
                                    ((target ^ (16U * u)) + 256U * kRowsApart * i)) = out[u];
        }
      }
      if (num_keys < kFastBlockTokens) {
        for (int token = thread / kUnits; token < kFastBlockTokens;
             token += kPartThreads / kUnits) {
          if (token < num_keys) continue;
          for (int u = 0; u < kOutUnits; ++u) {
            *reinterpret_cast<uint4*>(shared_.values + 256 * token +
                                      swizzled(token, kOutUnits * (thread % kUnits) + u)) = uint4{};
          }
        }
      }
    }
  }

  /// Dims 32 · warp + 8t + …, t < 4.
  __device__ __forceinline__ void add_values(const std::byte* v) {
    constexpr bool kIsPadded = F == CacheFormat::kBf16;
    constexpr std::uint32_t kRow = kIsPadded ? H::kRowBytes : 256;
    const auto row = static_cast<std::uint32_t>(lane_ % 16);
    const std::uint32_t weights =
        ptx::shared_address(shared_.weights) + 256 * row + swizzled(lane_ % 16, lane_ / 16);
    // Matrices: keys 0-7 and 8-15 of dims 8t…, then of the next eight.
    const int unit = 4 * warp_ + lane_ / 16;
    const std::uint32_t values =
        kIsPadded ? ptx::shared_address(v) + kRow * row + 16U * static_cast<std::uint32_t>(unit)
                  : ptx::shared_address(shared_.values) + kRow * row + swizzled(lane_ % 16, unit);
    const std::uint32_t next_values = kIsPadded ? values + 32 : values ^ 32U;
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      std::uint32_t p[4];
      ptx::ldmatrix_x4(p, (weights ^ (swizzled(0, 2 * step) & 0x7FU)) + 128U * (step / 4));
#pragma unroll
      for (int t = 0; t < 4; t += 2) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, (t == 0 ? values : next_values) + 16U * kRow * step);
        mma<F>(outputs_[t], p, b[0], b[1]);
        mma<F>(outputs_[t + 1], p, b[2], b[3]);
      }
    }
  }

  __device__ void write_part() {
    __syncthreads();  // the tile is free
    auto* const outputs = reinterpret_cast<float*>(shared_.values);
    const int c = lane_ % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane_ / 4 + 8 * r;
      shared_.sums[warp_][head][c] = sum_[r];
      if (warp_ == 0 && c == 0) shared_.maximum[head] = maximum_[r];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        *reinterpret_cast<float2*>(outputs + head * kFastDim + 32 * warp_ + 8 * t + 2 * c) =
            float2{outputs_[t][2 * r], outputs_[t][2 * r + 1]};
      }
    }
    __syncthreads();
    if (threadIdx.x < kPartHeads) {
      float sum[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = shared_.sums[0][threadIdx.x][i];
#pragma unroll
        for (int w = 1; w < kPartWarps; ++w) sum[i] += shared_.sums[w][threadIdx.x][i];
      }
      shared_.sum[threadIdx.x] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    __syncthreads();
  }

  const CachePlanes& planes_;
  int kv_head_;
  std::int32_t position_;
  float factor_;
  PartShared<F>& shared_;
  int warp_;
  int lane_;
  std::uint32_t weight_store_;  // of this lane's P: row lane / 4, key 32 · warp + 2 (lane % 4)
  int first_half_ = 0;          // halves of the runs before
  int num_halves_ = 0;
  float maximum_[2];
  float sum_[2];
  float outputs_[4][4];
  std::uint32_t queries_[8][4];
};

}  // namespace winnow::cuda
