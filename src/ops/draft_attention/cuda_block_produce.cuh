// Of the drafter's attention: the warpgroup that turns cached pages and the block's own keys and
// values into operands of wgmma. Included by cuda_block.cu alone.
//
// A page goes through registers only: a lane loads 16 bytes each of eight tokens of a plane while
// the plane before is converted. Shared memory, which the products read at half of its rate, is
// written once.
#pragma once

#include "ops/cuda/ptx_sm90.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/draft_attention/cuda_block_tile.cuh"

namespace winnow::cuda::draft_block {

inline constexpr int kProducerBarrier = 2;
inline constexpr int kPrefetchedPages = 3;  // ahead of the loads, to L2
inline constexpr int kUnits = 8;            // of a lane in a plane

/// The block's own tokens of the page that begins at `first_position`, from `qkv` into an operand.
/// By the producers.
__device__ __forceinline__ void write_own(const DraftBlockArgs& args, const Tile& tile, int head,
                                          std::int32_t first_position, std::byte* operand) {
  constexpr int kPairs = kFastDim / 2;
  constexpr float kLargest = 65504.0F;
  const ops::SequenceSlice& slice = tile.slice;
  const std::int32_t begin = max(slice.first_position - first_position, 0);
  const std::int32_t end = min(tile.block_end() - first_position, kFastBlockTokens);
  const std::int64_t width = std::int64_t{args.shape.num_heads + 2 * args.shape.num_kv_heads};
  const float* const from = args.qkv + (slice.first_token * width + head) * kFastDim;
  const int thread = static_cast<int>(threadIdx.x) % kProducerThreads;
#pragma unroll 4
  for (int i = thread; i < (end - begin) * kPairs; i += kProducerThreads) {
    const int slot = begin + i / kPairs;
    const int pair = i % kPairs;
    const std::int64_t token = first_position + slot - slice.first_position;
    const float2 x = *reinterpret_cast<const float2*>(from + token * width * kFastDim + 2 * pair);
    *reinterpret_cast<std::uint32_t*>(operand + pair / 32 * kOperandHalfBytes + slot * 128 +
                                      ((pair % 32 / 4 ^ slot % 8) << 4) + pair % 4 * 4) =
        pack_operands<kFormat>(fminf(fmaxf(x.x, -kLargest), kLargest),
                               fminf(fmaxf(x.y, -kLargest), kLargest));
  }
}

/// One plane at a time in a producer lane's registers: unit i is 16 values of token first + 4i.
class PlaneLoader {
 public:
  /// The lanes of a phase of stores (8 lanes, 16 bytes each) use different banks.
  __device__ __forceinline__ explicit PlaneLoader(int thread)
      : first_token_((thread & ~31) + (thread >> 2 & 1) + (thread >> 4 & 1) * 2) {
    const int part = (thread & 3) | (thread >> 3 & 1) << 2;
    from_ = first_token_ * kFastDim + part * 16;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int chunk = ((part & 3) * 2 + j) ^ (first_token_ & 3);
      to_[j] = (part >> 2) * kOperandHalfBytes + first_token_ * 128 + (chunk << 4);
    }
  }

  __device__ __forceinline__ void load(const std::byte* plane) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) load(plane, i);
  }

  /// Values of tokens outside [begin, end) may never have been written.
  __device__ __forceinline__ void clear_outside(int begin, int end) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const int token = first_token_ + 4 * i;
      if (token < begin || token >= end) units_[i] = make_uint4(0, 0, 0, 0);
    }
  }

  /// Writes the plane to `operand` and loads another.
  __device__ __forceinline__ void convert(std::byte* operand, const std::byte* next) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const std::uint32_t words[4] = {units_[i].x, units_[i].y, units_[i].z, units_[i].w};
      std::uint32_t halves[4][2];
#pragma unroll
      for (int w = 0; w < 4; ++w) expand_fp8(words[w], halves[w]);
      if (next != nullptr) load(next, i);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        // Odd units are of tokens whose chunks lie four further.
        *reinterpret_cast<uint4*>(operand + (to_[j] ^ (i % 2 * 64)) + i * 512) = make_uint4(
            halves[2 * j][0], halves[2 * j][1], halves[2 * j + 1][0], halves[2 * j + 1][1]);
      }
    }
  }

 private:
  __device__ __forceinline__ void load(const std::byte* plane, int i) {
    units_[i] = __ldg(reinterpret_cast<const uint4*>(plane + from_) + i * (4 * kFastDim / 16));
  }

  uint4 units_[kUnits];
  int first_token_;
  int from_;
  int to_[2];
};

__device__ __forceinline__ void produce(const DraftBlockArgs& args, const Tile& tile,
                                        Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % kProducerThreads;
  const std::int32_t context = tile.slice.first_position;
  // Pages of the cache, from tile.begin on; the block's own may follow.
  const std::int32_t cached_end =
      min(tile.end, (context + kFastBlockTokens - 1) / kFastBlockTokens - tile.first_page);
  const auto row_of = [&](std::int32_t page) {
    return args.planes.row(tile.slice.block_table[tile.first_page + page]);
  };
  const std::int64_t keys = args.planes.k.data(tile.kv_head, 0);
  const std::int64_t values = args.planes.v.data(tile.kv_head, 0);
  const auto prefetch = [&](std::int32_t page) {
    if (page >= cached_end) return;
    const std::byte* const row = row_of(page);
    ptx::cp_async_bulk_prefetch_l2(row + keys, page_bytes(kFormat));
    ptx::cp_async_bulk_prefetch_l2(row + values, page_bytes(kFormat));
  };
  if (thread == 0) {
    for (int i = 1; i <= kPrefetchedPages; ++i) prefetch(tile.begin + i);
  }
  PlaneLoader loader(thread);
  const std::byte* row = nullptr;
  if (tile.begin < cached_end) {
    row = row_of(tile.begin);
    loader.load(row + keys);
  }
  bool has_waited = false;
  RingPlace<kStages> place;
  for (std::int32_t page = tile.begin; page < tile.end; ++page) {
    if (thread == 0) prefetch(page + kPrefetchedPages + 1);
    const std::byte* const next_row = page + 1 < cached_end ? row_of(page + 1) : nullptr;
    const std::int32_t first = (tile.first_page + page) * kFastBlockTokens;
    const bool is_whole = first >= tile.oldest && first + kFastBlockTokens <= context;
    const bool has_own = first + kFastBlockTokens > context;
    if (has_own && !has_waited) {
      ptx::griddepcontrol_wait();
      has_waited = true;
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      Pipe& pipe = shared.pipes[part];
      const std::byte* const next = part == 0             ? (row == nullptr ? row : row + values)
                                    : next_row == nullptr ? next_row
                                                          : next_row + keys;
      if (!is_whole) loader.clear_outside(tile.oldest - first, context - first);
      ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.empty[place.slot]), place.parity ^ 1);
      std::byte* const operand = shared.operands[part][place.slot];
      loader.convert(operand, next);
      if (has_own) {
        ptx::bar_sync(kProducerBarrier, kProducerThreads);  // over the zeros that were there
        const int head = args.shape.num_heads + part * args.shape.num_kv_heads + tile.kv_head;
        write_own(args, tile, head, first, operand);
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&pipe.full[place.slot]));
    }
    row = next_row;
    place.advance();
  }
}

}  // namespace winnow::cuda::draft_block
