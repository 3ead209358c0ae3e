// Attention for many tokens over all of their blocks.
//
// Floor: 4 · heads · 128 flops for each query and key it sees, at 790 TFLOP/s. Measured on an H200
// (cuda_attention_prefill_bench quick), 2048 tokens ending at 32K: 4.5 ms, 0.60 of it. The two
// consumer warpgroups run in step, since only two blocks fit beside each other, and conversion
// competes with the softmax for issue slots.
//
// One CTA is eight neighbouring tokens and one KV head. Two producer warpgroups copy each block's K
// and V (bulk copies, some blocks ahead) and convert them once to 16-bit operands. Two consumer
// warpgroups take four tokens each, a warp's 16 rows being the query heads of one token.
//
// Numerics: cache_fragments.cuh. The outputs of a quarter stay in registers, those merged so far in
// the result, where only the lane that owns them looks.
#include "ops/attention/cuda_prefill_softmax.cuh"
#include "ops/attention/cuda_prefill_tile.cuh"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/softmax_rows.cuh"
#include "ops/cuda/token_tiles.cuh"
#include "ops/cuda/wgmma_f16.cuh"

namespace winnow::cuda {
namespace {

using namespace attention_prefill;

constexpr int kTileTokens = 8;
constexpr int kStages = 2;  // converted blocks
constexpr int kConsumerThreads = 256;
constexpr int kProducerThreads = 256;
constexpr int kThreads = kConsumerThreads + kProducerThreads;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kMaxSharedBytes = 227 * 1024;
constexpr int kProducerBarrier = 2;  // and the next: one a warpgroup
constexpr int kQueryBarrier = 4;     // likewise
// Their mean is the 128 a thread that the kernel starts with.
constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 200;

/// Raw planes of K, and of V, in shared memory: what fits beside the rest.
constexpr int raw_stages(CacheFormat format) {
  return is_nvfp4(format) ? 3 : format == CacheFormat::kFp8 ? 2 : 1;
}

/// K (0) or V (1) on its way: raw in shared memory, then converted.
struct Pipe {
  std::uint64_t raw_full[3];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

struct Control {
  Pipe pipes[2];
  TokenTile tile;
  std::int32_t num_blocks;
};

constexpr int table_bytes(CacheFormat format) {
  return format == CacheFormat::kNvfp4E4m3 ? kMagnitudeTableBytes : 0;
}
template <CacheFormat F>
constexpr int shared_bytes() {
  constexpr int kBytes = 2 * kStages * kOperandBytes + 2 * kQueryBytes +
                         2 * raw_stages(F) * page_bytes(F) + table_bytes(F) +
                         static_cast<int>(sizeof(Control));
  static_assert(kBytes <= kMaxSharedBytes);
  return kBytes;
}

struct Shared {
  std::byte* operands;  // [K, V][kStages]
  std::byte* queries;   // [warpgroup], K-major operands as pages are
  std::byte* raw;       // [K, V][raw_stages]
  uint2* table;
  Control* control;
};

template <CacheFormat F>
__device__ Shared carve(std::byte* base) {
  Shared shared{.operands = base};
  base += 2 * kStages * kOperandBytes;
  shared.queries = base;
  base += 2 * kQueryBytes;
  shared.raw = base;
  base += 2 * raw_stages(F) * page_bytes(F);
  shared.table = reinterpret_cast<uint2*>(base);
  base += table_bytes(F);
  shared.control = reinterpret_cast<Control*>(base);
  return shared;
}

/// One warpgroup converts K (kPart 0) or V (1) of every block.
template <CacheFormat F, int kPart>
__device__ void produce(const AttentionPrefillArgs& args, const Shared& shared, int kv_head) {
  constexpr int kRaw = raw_stages(F);
  Control& control = *shared.control;
  Pipe& pipe = control.pipes[kPart];
  const std::int32_t* const block_table = control.tile.block_table;
  const CachePlanes& planes = args.planes;
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const int count = control.num_blocks;
  std::byte* const raw_planes = shared.raw + kPart * kRaw * page_bytes(F);
  std::byte* const operands = shared.operands + kPart * kStages * kOperandBytes;
  const HeadPlanes& part = kPart == 0 ? planes.k : planes.v;
  const std::int64_t data = part.data(kv_head, 0);
  const std::int64_t scales = part.scales(kv_head, 0);
  // The row of the next block to load, read one block ahead.
  std::int32_t next_row = thread == 0 ? block_table[0] : 0;
  const auto load = [&](int i, int slot) {
    const std::byte* const row = planes.row(next_row);
    if (i + 1 < count) next_row = block_table[i + 1];
    load_page<F>(ptx::shared_address(raw_planes) + slot * page_bytes(F), row + data, row + scales,
                 ptx::shared_address(&pipe.raw_full[slot]));
  };
  if (thread == 0) {
    for (int i = 0; i < min(kRaw - 1, count); ++i) load(i, i);
  }
  const int last_position = control.tile.first_position + control.tile.num_tokens - 1;
  const KeyConverter<F, 32> convert_keys(thread / 32 * 32);
  const ValueConverter<F> convert_value(thread);
  RingPlace<kRaw> raw;
  RingPlace<kStages> place;
  int load_slot = kRaw - 1;
  for (int i = 0; i < count; ++i) {
    ptx::bar_sync(kProducerBarrier + kPart, 128);  // block i - 1 has been read
    if (thread == 0 && i + kRaw - 1 < count) load(i + kRaw - 1, load_slot);
    if (++load_slot == kRaw) load_slot = 0;
    ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.raw_full[raw.slot]), raw.parity);
    ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.empty[place.slot]), place.parity ^ 1);
    const std::byte* const bytes = raw_planes + raw.slot * page_bytes(F);
    std::byte* const operand = operands + place.slot * kOperandBytes;
    if constexpr (kPart == 0) {
      convert_keys(bytes, shared.table, operand);
    } else {
      // Values past the tile's last token may never have been written; P is 0 there.
      const bool is_written = i * kFastBlockTokens + thread <= last_position;
      convert_value(bytes, shared.table, is_written, operand);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if ((thread & 31) == 0) ptx::mbarrier_arrive(ptx::shared_address(&pipe.full[place.slot]));
    raw.advance();
    place.advance();
  }
}

template <CacheFormat F>
__device__ void consume(const AttentionPrefillArgs& args, const Shared& shared, int kv_head) {
  Control& control = *shared.control;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const bool is_token = warp < control.tile.num_tokens;
  std::byte* const queries = shared.queries + (warp / 4) * kQueryBytes;
  {
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    const std::int64_t first_head =
        (std::int64_t{control.tile.first_token} + warp) * args.shape.num_heads + kv_head * group;
    store_queries<F>(args.q + first_head * kFastDim, group, is_token, (warp & 3) * 16, queries);
  }
  ptx::fence_proxy_async();
  ptx::bar_sync(kQueryBarrier + warp / 4, 128);
  const std::uint64_t a = ptx::swizzled_descriptor(ptx::shared_address(queries), 1024);
  float outputs[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) outputs[i] = 0.0F;
  Quarter quarter;
  quarter.reset();
  MergedRows total;
  const std::uint32_t operands = ptx::shared_address(shared.operands);
  Pipe& keys = control.pipes[0];
  Pipe& values = control.pipes[1];
  RingPlace<kStages> place;
  const int count = control.num_blocks;
  for (int i = 0; i < count; ++i) {
    // The tile's tokens lie in two blocks at most.
    const int seen = i + 2 < count ? kFastBlockTokens
                                   : control.tile.first_position + warp + 1 - i * kFastBlockTokens;
    const bool is_mine = is_token && seen > 0;
    ptx::mbarrier_wait_parity(ptx::shared_address(&keys.full[place.slot]), place.parity);
    std::uint32_t p[8][4];
    float scores[64];
    const std::uint64_t k_operand =
        ptx::swizzled_descriptor(operands + place.slot * kOperandBytes, 1024);
    multiply_keys<F>(a, k_operand, scores);
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&keys.empty[place.slot]));
    if (is_mine) {
      softmax<F>(scores, seen, softmax_factor(args.scale), quarter, outputs, p);
    } else {
      see_nothing(p);
    }
    ptx::mbarrier_wait_parity(ptx::shared_address(&values.full[place.slot]), place.parity);
    const std::uint64_t v_operand = ptx::swizzled_descriptor(
        operands + (kStages + place.slot) * kOperandBytes, 1024, kOperandHalfBytes);
    start_values<F>(p, v_operand, outputs);
    const auto wait_outputs = [&] {
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(outputs);
      if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&values.empty[place.slot]));
    };
    const bool is_last = i + 2 >= count && seen <= kFastBlockTokens;
    if (is_mine && (is_last || i % kDenseRunBlocks == kDenseRunBlocks - 1)) {
      total.add(quarter, outputs, softmax_factor(args.scale), is_last,
                result_rows(args, control.tile, kv_head),
                args.shape.num_heads / args.shape.num_kv_heads, wait_outputs);
    } else {
      wait_outputs();
    }
    place.advance();
  }
}

template <CacheFormat F>
__global__ void __launch_bounds__(kThreads, 1) sm90_dense_prefill(const AttentionPrefillArgs args) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Shared shared = carve<F>(memory);
  Control& control = *shared.control;
  const int kv_heads = args.shape.num_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == 0) {
    const TokenTile tile =
        find_token_tile(args.batch, kTileTokens, static_cast<int>(blockIdx.x) / kv_heads, true);
    if (threadIdx.x == 0) control.tile = tile;
  }
  if (threadIdx.x == 32) {
    for (Pipe& pipe : control.pipes) {
      for (int i = 0; i < raw_stages(F); ++i) {
        ptx::mbarrier_init(ptx::shared_address(&pipe.raw_full[i]), 1);
      }
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&pipe.full[i]), 4);
        ptx::mbarrier_init(ptx::shared_address(&pipe.empty[i]), kConsumerWarps);
      }
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), kThreads);
  }
  __syncthreads();
  if (control.tile.num_tokens == 0) return;
  if (threadIdx.x == 0) {
    control.num_blocks =
        (control.tile.first_position + control.tile.num_tokens - 1) / kFastBlockTokens + 1;
  }
  __syncthreads();
  if (threadIdx.x >= kConsumerThreads) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < kConsumerThreads + 128) {
      produce<F, 0>(args, shared, kv_head);
    } else {
      produce<F, 1>(args, shared, kv_head);
    }
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<F>(args, shared, kv_head);
  }
}

template <CacheFormat F>
void launch(const AttentionPrefillArgs& args, cudaStream_t stream) {
  cudaFuncSetAttribute(sm90_dense_prefill<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       shared_bytes<F>());
  const auto units = static_cast<unsigned>(
      max_token_tiles(args.batch.num_tokens, args.batch.num_sequences, kTileTokens) *
      args.shape.num_kv_heads);
  sm90_dense_prefill<F><<<units, kThreads, shared_bytes<F>(), stream>>>(args);
}

}  // namespace

void launch_dense_prefill(const AttentionPrefillArgs& args, cudaStream_t stream) {
  with_cache_format(cache_format(args.planes.k.dtype, args.planes.mode),
                    [&]<CacheFormat F>() { launch<F>(args, stream); });
}

}  // namespace winnow::cuda
