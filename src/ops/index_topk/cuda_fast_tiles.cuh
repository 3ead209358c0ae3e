// Sixteen index keys of a warp times all query rows ("columns") of an item, twice: with mma.sync
// and the queries in registers, and for many columns and long contexts with wgmma, which takes them
// from shared memory. Both give the same bits (ops/cuda/cache_fragments.cuh).
//
// Neither overlaps with widening the keys: a product keeps the other pipes from issuing for nearly
// as long as it takes, 7.3 cycles for 16 × 8 × 16 by mma.sync, 4.5 by wgmma (measured side by
// side).
#pragma once

#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/wgmma_f16.cuh"

namespace winnow::cuda {

inline constexpr int kIndexTileKeys = 16;
inline constexpr int kIndexBf16Row = 2 * kFastDim + 16;  // so that ldmatrix meets no bank conflict

/// Keys of a plane as the copy engine brings them to shared memory, `kNvfp4Keys` of nvfp4 at once.
template <CacheFormat F, int kNvfp4Keys>
struct IndexStage {
  static constexpr int kKeys = is_nvfp4(F) ? kNvfp4Keys : F == CacheFormat::kFp8 ? 32 : 16;
  static constexpr int kRowBytes = F == CacheFormat::kBf16 ? kIndexBf16Row : vector_bytes(F);
  static constexpr int kScaleOffset = kKeys * kRowBytes;
  static constexpr int kBytes = kScaleOffset + kKeys * vector_scale_bytes(F);
  static constexpr int kCopied = kKeys * (vector_bytes(F) + vector_scale_bytes(F));
  static constexpr int kPerBlock = kFastBlockTokens / kKeys;
};

using IndexOperands = std::uint32_t[8][4];  // of sixteen keys, eight steps

/// Keys [first, first + 16) of a stage as operands; `table` of fill_scaled_magnitudes().
template <CacheFormat F, typename Stage>
__device__ __forceinline__ void load_index_tile(const std::byte* stage, int first,
                                                const uint2* table, IndexOperands& operands) {
  const int lane = static_cast<int>(threadIdx.x & 31U);
  if constexpr (F == CacheFormat::kBf16) {
    const std::uint32_t address =
        ptx::shared_address(stage) +
        static_cast<std::uint32_t>((first + lane % 16) * Stage::kRowBytes + lane / 16 * 16);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      ptx::ldmatrix_x4(operands[j], address + static_cast<std::uint32_t>(j * 32));
    }
  } else {
    const int c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = first + 8 * half + lane / 4;
      const std::byte* const row = stage + key * Stage::kRowBytes;
      KeyFragment fragment;
      if constexpr (F == CacheFormat::kFp8) {
        const uint4* const quarter = reinterpret_cast<const uint4*>(row + 32 * c);
        expand_fp8_key(quarter[0], quarter[1], fragment);
      } else if constexpr (is_nvfp4(F)) {
        const uint4 codes = *reinterpret_cast<const uint4*>(row + 16 * c);
        const std::uint32_t scales = *reinterpret_cast<const std::uint16_t*>(
            stage + Stage::kScaleOffset + key * vector_scale_bytes(F) + 2 * c);
        expand_key<F>(codes, scales, table, fragment);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        operands[j][half] = fragment.operands[j][0];
        operands[j][half + 2] = fragment.operands[j][1];
      }
    }
  }
}

/// Two neighbouring positions of a k16 step in a column: what a word of the queries holds.
struct IndexQueryPlace {
  int column, step, position;
};

/// Largest scores of a lane's columns 8t + 2 (lane % 4) and the next.
template <int kColumns>
using IndexMaxima = float[kColumns / 8][2];

/// Every warp by itself, mma.sync.
template <CacheFormat F, int kColumns>
class IndexWarpTiles {
 public:
  static constexpr int kWarps = 8;
  static constexpr int kTeamWarps = 1;  // that go on together
  using Stage = IndexStage<F, 128>;
  static constexpr int kStages = is_nvfp4(F) ? 2 : 4;  // of a warp's ring
  static constexpr int kSegmentBlocks = 256;           // at most: a warp's rows fit its lanes
  /// Operands: of tile t, steps 2i and 2i + 1, lane.
  using Queries = uint4[kColumns / 8][4][32];

  __device__ static IndexQueryPlace place_of(int word) {
    const int lane = word / 4 % 32;
    return {.column = word / 512 * 8 + lane / 4,
            .step = word / 128 % 4 * 2 + word / 2 % 2,
            .position = lane % 4 * 2 + word % 2 * 8};
  }

  __device__ void load_queries(const Queries& queries) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 both = queries[t][i][threadIdx.x & 31U];
        queries_[t][2 * i][0] = both.x;
        queries_[t][2 * i][1] = both.y;
        queries_[t][2 * i + 1][0] = both.z;
        queries_[t][2 * i + 1][1] = both.w;
      }
    }
  }

  __device__ __forceinline__ void score_stage(const std::byte* stage, bool, const uint2* table,
                                              IndexMaxima<kColumns>& best) {
#pragma unroll kUnroll
    for (int first = 0; first < Stage::kKeys; first += kIndexTileKeys) {
      float sums[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][i] = 0.0F;
      }
      IndexOperands keys;
      load_index_tile<F, Stage>(stage, first, table, keys);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma<F>(sums[t], keys[j], queries_[t][j][0], queries_[t][j][1]);
        }
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        best[t][0] = fmaxf(best[t][0], fmaxf(sums[t][0], sums[t][2]));
        best[t][1] = fmaxf(best[t][1], fmaxf(sums[t][1], sums[t][3]));
      }
    }
  }

 private:
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kUnroll = 2;  // 1 was 8 % slower
  std::uint32_t queries_[kTiles][8][2];
};

/// The warps of a warpgroup together, wgmma: sixteen rows for each warp, which may be of a block of
/// its own, or of none. Takes longer to start, so for many keys.
template <CacheFormat F>
class IndexGroupTiles {
  static_assert(is_nvfp4(F));

 public:
  static constexpr int kColumns = 32;
  static constexpr int kWarps = 16;
  static constexpr int kTeamWarps = 4;
  using Stage = IndexStage<F, 64>;
  static constexpr int kStages = 2;
  static constexpr int kSegmentBlocks = 288;  // what fits
  /// Core matrices: [position / 8][column][position % 8].
  using Queries = uint4[kFastDim / 8][kColumns];

  __device__ static IndexQueryPlace place_of(int word) {
    const int eight = word / (4 * kColumns);
    return {
        .column = word / 4 % kColumns, .step = eight / 2, .position = eight % 2 * 8 + word % 4 * 2};
  }

  __device__ void load_queries(const Queries& queries) {
    queries_ = ptx::core_matrix_descriptor(ptx::shared_address(&queries), kColumns * 16, 128);
  }

  __device__ __forceinline__ void score_stage(const std::byte* stage, bool has_keys,
                                              const uint2* table, IndexMaxima<kColumns>& best) {
#pragma unroll kUnroll
    for (int first = 0; first < Stage::kKeys; first += kIndexTileKeys) {
      IndexOperands keys;
      float sums[kColumns / 2];
      if (has_keys) load_index_tile<F, Stage>(stage, first, table, keys);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        ptx::wgmma_m64n32k16_f16(sums, keys[j],
                                 queries_ + static_cast<std::uint64_t>(j * 2 * kColumns), j > 0);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(sums);
#pragma unroll
      for (int t = 0; t < kColumns / 8; ++t) {
        best[t][0] = fmaxf(best[t][0], fmaxf(sums[4 * t], sums[4 * t + 2]));
        best[t][1] = fmaxf(best[t][1], fmaxf(sums[4 * t + 1], sums[4 * t + 3]));
      }
    }
  }

 private:
  static constexpr int kUnroll = 4;  // 1 was 7 % slower
  std::uint64_t queries_ = 0;
};

}  // namespace winnow::cuda
