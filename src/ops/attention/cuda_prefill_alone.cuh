// Of attention for many tokens: a token whose neighbours selected other blocks, by one warp that
// reads its blocks alone. Sharing them in wgmma tiles of four tokens would leave most rows empty.
// Included by cuda_prefill_sparse.cu alone.
//
// The query heads are the 16 rows of mma.m16n8k16; a lane turns codes straight into operands: of K
// its quarter of a key as everywhere, of V dims 16 (lane / 4) to 16 (lane / 4) + 15 of the keys
// that its operands need. So "column" n of tile t of the outputs is dim 16n + t. The copy engine
// brings planes to a ring of the warp's own; warps never wait for each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/cuda_prefill_softmax.cuh"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/ring_place.cuh"

namespace winnow::cuda::attention_prefill {

inline constexpr int kAlonePlanes = 2;  // K and V in turns

/// Of one warp.
struct AloneRing {
  std::uint64_t full[kAlonePlanes];
};

/// A token's blocks in ascending order, one a lane.
struct OwnBlocks {
  std::int32_t block;
  std::int32_t pool_row;
  int count;
};

/// Keeps the copy engine up to kAlonePlanes planes ahead of the warp.
template <CacheFormat F>
class AloneCopies {
 public:
  __device__ __forceinline__ AloneCopies(const CachePlanes& planes, int kv_head,
                                         const OwnBlocks& blocks, std::uint32_t ring,
                                         std::uint32_t full)
      : planes_(planes), kv_head_(kv_head), blocks_(blocks), ring_(ring), full_(full) {}

  /// Starts the next plane, whose slot every lane has read.
  __device__ __forceinline__ void start_next() {
    if (next_ == 2 * blocks_.count) return;
    const std::int32_t pool_row = __shfl_sync(~0U, blocks_.pool_row, next_ / 2);
    if ((threadIdx.x & 31) == 0) {
      const HeadPlanes& part = next_ % 2 == 0 ? planes_.k : planes_.v;
      const std::byte* const row = planes_.row(pool_row);
      load_page<F>(ring_ + slot_ * page_bytes(F), row + part.data(kv_head_, 0),
                   row + part.scales(kv_head_, 0), full_ + slot_ * 8);
    }
    ++next_;
    slot_ = slot_ == kAlonePlanes - 1 ? 0 : slot_ + 1;
  }

 private:
  const CachePlanes& planes_;
  int kv_head_;
  OwnBlocks blocks_;
  std::uint32_t ring_;
  std::uint32_t full_;
  int slot_ = 0;
  int next_ = 0;
};

/// Scores of a block, [8j + …] as accumulators of wgmma have them.
template <CacheFormat F>
__device__ __forceinline__ void score_alone(const std::byte* plane, const uint2* table,
                                            const std::uint32_t (&queries)[8][4],
                                            float (&scores)[64]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const std::byte* const codes = plane + lane * 16;
  const std::byte* const scales = plane + page_data_bytes(F) + lane * 2;
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    KeyFragment key;
    expand_key<F>(*reinterpret_cast<const uint4*>(codes + j * 512),
                  *reinterpret_cast<const std::uint16_t*>(scales + j * 64), table, key);
    float d[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int k = 0; k < 8; ++k) mma<F>(d, queries[k], key.operands[k][0], key.operands[k][1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[4 * j + i] = d[i];
  }
}

/// Values of tokens from `seen` on may never have been written; P is 0 there.
template <CacheFormat F>
__device__ __forceinline__ void clear_values(std::byte* plane, int seen) {
  for (int token = seen + (static_cast<int>(threadIdx.x) & 31); token < kFastBlockTokens;
       token += 32) {
    for (int i = 0; i < 4; ++i) {
      reinterpret_cast<uint4*>(plane + token * 64)[i] = make_uint4(0, 0, 0, 0);
    }
    *reinterpret_cast<uint2*>(plane + page_data_bytes(F) + token * 8) = make_uint2(0, 0);
  }
  ptx::fence_proxy_async();  // the next plane is copied over it
  __syncwarp();
}

/// outputs += P · V. Of two neighbouring keys a lane interleaves the codes of its 16 dims, so that
/// a pair of halves is one dim of both.
template <CacheFormat F>
__device__ __forceinline__ void add_values_alone(const std::byte* plane, const uint2* table,
                                                 const std::uint32_t (&p)[8][4],
                                                 float (&outputs)[64]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int r = lane / 4;
  const int c = lane & 3;
  // Neighbouring lanes read keys of different parity, so that fewer share a bank.
  const int parity = c & 1;
  const int first = 2 * c + parity;
  const std::uint32_t picks[2] = {parity == 0 ? 0x5140U : 0x1504U, parity == 0 ? 0x7362U : 0x3726U};
  const std::byte* const even = plane + r * 8;
  const std::byte* const scales = plane + page_data_bytes(F) + r;
#pragma unroll
  for (int s = 0; s < 8; ++s) {
    uint2 words[4];
    GroupScale<F> groups[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int token = 16 * s + (m & 1 ? first ^ 1 : first) + 8 * (m >> 1);
      words[m] = *reinterpret_cast<const uint2*>(even + token * 64);
      GroupScale<F> unused;
      load_group_scales<F>(static_cast<std::uint32_t>(scales[token * 8]), table, groups[m], unused);
    }
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      std::uint32_t operands[2][8];  // [keys 2c, 2c + 1 or 8 more][dim]
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t a[2];
        std::uint32_t b[2];
        expand_to_bytes<F>(w == 0 ? words[2 * half].x : words[2 * half].y, groups[2 * half], a);
        expand_to_bytes<F>(w == 0 ? words[2 * half + 1].x : words[2 * half + 1].y,
                           groups[2 * half + 1], b);
        __half2 scale{};
        if constexpr (F == CacheFormat::kNvfp4Exact) {
          const __half x = __low2half(groups[2 * half].scale);
          const __half y = __low2half(groups[2 * half + 1].scale);
          scale = parity == 0 ? __halves2half2(x, y) : __halves2half2(y, x);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t bytes = ptx::prmt(a[i / 2], b[i / 2], picks[i % 2]);
          std::uint32_t* const to = operands[half] + 2 * i;
          if constexpr (F == CacheFormat::kNvfp4E4m3) {
            ptx::cvt_f16x2_e4m3x2_pairs(bytes, to[0], to[1]);
          } else {
            scale_halves(bytes, scale, to[0], to[1]);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int t = 8 * w + i;
        float d[4] = {outputs[4 * t], outputs[4 * t + 1], outputs[4 * t + 2], outputs[4 * t + 3]};
        mma<F>(d, p[s], operands[0][i], operands[1][i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) outputs[4 * t + j] = d[j];
      }
    }
  }
}

inline constexpr int kMergedBytes = 16 * kFastDim * 4;  // of a token

/// One token's merged quarters: maxima and sums in registers, outputs in shared memory, where each
/// lane has its own.
class MergedInShared {
 public:
  __device__ __forceinline__ explicit MergedInShared(std::byte* outputs)
      : outputs_(reinterpret_cast<float4*>(outputs) + (threadIdx.x & 31)) {}

  /// Adds a quarter and clears it; the last one leaves the result in `outputs`.
  __device__ __forceinline__ void add(Quarter& quarter, float (&outputs)[64], float factor,
                                      bool is_last) {
    float a[2];
    float b[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows_[r].add(quarter.maximum[r], quarter.sum(r), factor, a[r], b[r]);
    }
    const float normalizers[2] = {is_last ? rows_[0].normalizer() : 1.0F,
                                  is_last ? rows_[1].normalizer() : 1.0F};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float4 x = is_empty_ ? make_float4(0.0F, 0.0F, 0.0F, 0.0F) : outputs_[32 * j];
      const float before[4] = {x.x, x.y, x.z, x.w};
      float total[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[i] =
            __fmul_rn(__fmaf_rn(outputs[4 * j + i], b[i / 2], __fmul_rn(before[i], a[i / 2])),
                      normalizers[i / 2]);
        outputs[4 * j + i] = is_last ? total[i] : 0.0F;
      }
      if (!is_last) outputs_[32 * j] = make_float4(total[0], total[1], total[2], total[3]);
    }
    is_empty_ = false;
    quarter.reset();
  }

 private:
  float4* outputs_;
  MergedSoftmax rows_[2];
  bool is_empty_ = true;
};

/// Rows of `heads` query heads, from `out` on.
__device__ __forceinline__ void write_alone(const float (&outputs)[64], int heads, float* out) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (lane / 4 + 8 * r >= heads) continue;
    auto* const to =
        reinterpret_cast<float4*>(out + (lane / 4 + 8 * r) * kFastDim + 32 * (lane & 3));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float* const x = outputs + 16 * (j % 4) + 2 * r + j / 4;
      to[j] = make_float4(x[0], x[4], x[8], x[12]);
    }
  }
}

/// The token at `position` against its blocks, at least one. Leaves the result in `outputs`.
template <CacheFormat F>
__device__ __forceinline__ void attend_alone(AloneCopies<F>& copies, const OwnBlocks& blocks,
                                             std::byte* ring, std::uint32_t full, std::byte* merged,
                                             const uint2* table,
                                             const std::uint32_t (&queries)[8][4], int position,
                                             float factor, int entries_of_quarter,
                                             float (&outputs)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) outputs[i] = 0.0F;
  Quarter quarter;
  quarter.reset();
  MergedInShared total(merged);
  for (int i = 0; i < kAlonePlanes; ++i) copies.start_next();
  RingPlace<kAlonePlanes> place;
  for (int b = 0; b < blocks.count; ++b) {
    const int seen = position + 1 - __shfl_sync(~0U, blocks.block, b) * kFastBlockTokens;
    float scores[64];
    ptx::mbarrier_wait_parity(full + place.slot * 8, place.parity);
    score_alone<F>(ring + place.slot * page_bytes(F), table, queries, scores);
    __syncwarp();
    copies.start_next();
    place.advance();
    std::uint32_t p[8][4];
    softmax<F>(scores, seen, factor, quarter, outputs, p);
    ptx::mbarrier_wait_parity(full + place.slot * 8, place.parity);
    if (seen < kFastBlockTokens) clear_values<F>(ring + place.slot * page_bytes(F), seen);
    add_values_alone<F>(ring + place.slot * page_bytes(F), table, p, outputs);
    __syncwarp();
    copies.start_next();
    place.advance();
    const bool is_last = b + 1 == blocks.count;
    if (is_last || (b + 1) % entries_of_quarter == 0) total.add(quarter, outputs, factor, is_last);
  }
}

}  // namespace winnow::cuda::attention_prefill
