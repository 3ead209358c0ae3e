// One part of a token's attention: up to 16 query heads of one KV head against some blocks in
// ascending order, by a CTA of eight warps. Sums and their order: ops/cuda/cache_fragments.cuh.
//
// Per block: each warp scores 16 keys (queries are the M side, kept as operands in shared memory; a
// lane dequantises its quarter of a key straight into an operand), the warps exchange maxima, V is
// dequantised into a swizzled fp16 tile and P stored beside it, then each warp adds 16 dims. Two
// barriers a block. K and V of a block are one half each of a ring of three that the copy engine
// fills.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"

namespace winnow::cuda {

inline constexpr int kPartWarps = 8;
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
  uint4 queries[8][32];                                               // as operands: of step, lane
  uint2 table[F == CacheFormat::kNvfp4E4m3 ? 256 : 1];
  float warp_maxima[kPartWarps][kPartHeads];
  float first_sums[kPartWarps / 2][kPartHeads][4];  // of the first half of a part's keys
  float sums[kPartWarps / 2][kPartHeads][4];
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
                      swizzled(lane_ / 4, kTiles * warp_)) {
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

  /// Rows of the `heads` query heads, as operands in shared memory; the others are 0. Needs a
  /// barrier.
  __device__ void stage_queries(const float* q, int heads) {
    for (int i = static_cast<int>(threadIdx.x); i < 8 * 32; i += kPartThreads) {
      const int step = i / 32;
      const int c = i % 4;
      const float* const row = q + std::int64_t{i % 32 / 4} * kFastDim;
      std::uint32_t operands[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float2 pair{};
        if (i % 32 / 4 + 8 * (j % 2) < heads) {
          pair = *reinterpret_cast<const float2*>(row + 8 * (j % 2) * kFastDim +
                                                  key_dim(F, step, 2 * c + 8 * (j / 2)));
        }
        operands[j] = pack_operands<F>(pair.x, pair.y);
      }
      shared_.queries[step][i % 32] = {operands[0], operands[1], operands[2], operands[3]};
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
    for (int t = 0; t < kTiles; ++t) {
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
  static_assert(kPartWarps == 8);
  static constexpr int kTiles = 16 / kPartWarps;  // of 8 keys or dims, of a warp
  using Scores = float[kTiles][4];
  struct Queries {
    __device__ explicit Queries(const uint4& q) : operands{q.x, q.y, q.z, q.w} {}
    std::uint32_t operands[4];
  };

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
    Scores scores;
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
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) outputs_[t][i] *= alpha[i / 2];
    }
    __syncthreads();
    add_weights(scores, alpha);
    if constexpr (F != CacheFormat::kBf16) copy(2 * index + 1 + H::kSlots, rows);
    add_values(v);
    if constexpr (F == CacheFormat::kBf16) {
      __syncthreads();
      copy(2 * index + 1 + H::kSlots, rows);
    }
  }

  /// Keys 16 · warp + 8t + …
  __device__ __forceinline__ void score(const std::byte* k, Scores& scores) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[t][i] = 0.0F;
    }
    if constexpr (F == CacheFormat::kBf16) {
      // Matrices: positions 0-7 and 8-15 of a step, of the keys of both tiles.
      const std::uint32_t address =
          ptx::shared_address(k) +
          static_cast<std::uint32_t>((8 * kTiles * warp_ + lane_ / 16 * 8 + lane_ % 8) *
                                         H::kRowBytes +
                                     lane_ / 8 % 2 * 16);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        std::uint32_t keys[4];
        ptx::ldmatrix_x4(keys, address + static_cast<std::uint32_t>(j * 32));
        const Queries q(shared_.queries[j][lane_]);
        mma<F>(scores[0], q.operands, keys[0], keys[1]);
        mma<F>(scores[1], q.operands, keys[2], keys[3]);
      }
    } else {
      KeyFragment fragments[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        load_key(k, 8 * kTiles * warp_ + 8 * t + lane_ / 4, fragments[t]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const Queries q(shared_.queries[j][lane_]);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma<F>(scores[t], q.operands, fragments[t].operands[j][0], fragments[t].operands[j][1]);
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

  __device__ int key_of(int t, int i) const {
    return 8 * kTiles * warp_ + 8 * t + 2 * (lane_ % 4) + i;
  }

  __device__ __forceinline__ void mask(int num_keys, Scores& scores) {
    if (num_keys >= kFastBlockTokens) return;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (key_of(t, i % 2) >= num_keys) scores[t][i] = kNegativeInfinity;
      }
    }
  }

  __device__ __forceinline__ void write_maxima(const Scores& scores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = kNegativeInfinity;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        best = fmaxf(best, fmaxf(scores[t][2 * r], scores[t][2 * r + 1]));
      }
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 2));
      if (lane_ % 4 == 0) shared_.warp_maxima[warp_][lane_ / 4 + 8 * r] = best;
    }
  }

  /// New maxima, P into `weights` and shared memory; `alpha` scales what was.
  __device__ __forceinline__ void exponentiate(int num_keys, Scores& weights, float (&alpha)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane_ / 4 + 8 * r;
      // A quarter of the warps' maxima for each lane of a quad.
      float larger =
          fmaxf(shared_.warp_maxima[lane_ % 4][head], shared_.warp_maxima[lane_ % 4 + 4][head]);
      larger = fmaxf(larger, __shfl_xor_sync(0xFFFFFFFFU, larger, 1));
      larger = fmaxf(larger, __shfl_xor_sync(0xFFFFFFFFU, larger, 2));
      larger = fmaxf(larger, maximum_[r]);
      alpha[r] = rescale(maximum_[r], larger, factor_);
      maximum_[r] = larger;
      const float scaled = __fmul_rn(larger, factor_);
      float sum = 0.0F;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& p = weights[t][2 * r + i];
          p = probability(p, scaled, factor_);  // 0 for -inf
          sum += p;
        }
        *reinterpret_cast<std::uint32_t*>(shared_.weights +
                                          ((weight_store_ ^ (16U * t)) + 2048U * r)) =
            pack_operands<F>(weights[t][2 * r], weights[t][2 * r + 1]);
      }
      if (warp_ % 2 == 0) shared_.first_sums[warp_ / 2][head][lane_ % 4] = sum;
    }
  }

  /// Odd warps: the sum of a part, of which the warp before has the first half.
  __device__ __forceinline__ void add_weights(const Scores& weights, const float (&alpha)[2]) {
    if (warp_ % 2 == 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = shared_.first_sums[warp_ / 2][lane_ / 4 + 8 * r][lane_ % 4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) sum += weights[t][2 * r + i];
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
      if (token < num_keys || token >= kFastBlockTokens) return;
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
      constexpr int kRowsApart = kPartThreads / kUnits;
#pragma unroll 2
      for (int i = 0; i < kFastBlockTokens / kRowsApart; ++i) {
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

  /// Dims 16 · warp + 8t + …
  __device__ __forceinline__ void add_values(const std::byte* v) {
    constexpr bool kIsPadded = F == CacheFormat::kBf16;
    constexpr std::uint32_t kRow = kIsPadded ? H::kRowBytes : 256;
    const auto row = static_cast<std::uint32_t>(lane_ % 16);
    const std::uint32_t weights =
        ptx::shared_address(shared_.weights) + 256 * row + swizzled(lane_ % 16, lane_ / 16);
    // Matrices: keys 0-7 and 8-15 of dims 8t…, then of the next eight.
    const int unit = kTiles * warp_ + lane_ / 16;
    const std::uint32_t values =
        kIsPadded ? ptx::shared_address(v) + kRow * row + 16U * static_cast<std::uint32_t>(unit)
                  : ptx::shared_address(shared_.values) + kRow * row + swizzled(lane_ % 16, unit);
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      std::uint32_t p[4];
      ptx::ldmatrix_x4(p, (weights ^ (swizzled(0, 2 * step) & 0x7FU)) + 128U * (step / 4));
      static_assert(kTiles == 2);
      std::uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, values + 16U * kRow * step);
      mma<F>(outputs_[0], p, b[0], b[1]);
      mma<F>(outputs_[1], p, b[2], b[3]);
    }
  }

  __device__ void write_part() {
    __syncthreads();  // the tile is free
    auto* const outputs = reinterpret_cast<float*>(shared_.values);
    const int c = lane_ % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane_ / 4 + 8 * r;
      if (warp_ % 2 == 1) shared_.sums[warp_ / 2][head][c] = sum_[r];
      if (warp_ == 0 && c == 0) shared_.maximum[head] = maximum_[r];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        *reinterpret_cast<float2*>(outputs + head * kFastDim + 8 * kTiles * warp_ + 8 * t + 2 * c) =
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
        for (int w = 1; w < kPartWarps / 2; ++w) sum[i] += shared_.sums[w][threadIdx.x][i];
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
  std::uint32_t weight_store_;  // of this lane's P: row lane / 4, key 16 · warp + 2 (lane % 4)
  int first_half_ = 0;          // halves of the runs before
  int num_halves_ = 0;
  float maximum_[2];
  float sum_[2];
  float outputs_[kTiles][4];
};

}  // namespace winnow::cuda
