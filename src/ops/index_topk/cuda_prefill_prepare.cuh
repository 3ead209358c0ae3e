// Of the indexer for many tokens: the launch that converts a prompt's blocks of keys to operands.
// Included by cuda_prefill.cu alone.
#pragma once

#include "ops/cuda/page_operand.cuh"
#include "ops/index_topk/cuda_prefill_select.cuh"

namespace winnow::cuda::index_prefill {

inline constexpr int kPrepareThreads = 128;

template <CacheFormat F>
constexpr int prepare_shared_bytes() {
  return 1024 + kOperandBytes + page_bytes(F) + kMagnitudeTableBytes;
}

/// Converts every block that some query ranks, once for all tiles of its sequence.
template <CacheFormat F>
__global__ void __launch_bounds__(kPrepareThreads) index_prefill_prepare(const KernelArgs k) {
  extern __shared__ std::byte unaligned[];
  __shared__ std::uint64_t full;
  std::byte* const operand = unaligned + ((1024 - (ptx::shared_address(unaligned) & 1023)) & 1023);
  std::byte* const raw = operand + kOperandBytes;
  uint2* const table = reinterpret_cast<uint2*>(raw + page_bytes(F));
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    ptx::mbarrier_init(ptx::shared_address(&full), 1);
    ptx::fence_mbarrier_init();
  }
  if constexpr (F == CacheFormat::kNvfp4E4m3)
    fill_scaled_magnitudes(table, thread, kPrepareThreads);
  __syncthreads();
  const CachePlanes& planes = k.args.planes;
  const DeviceBatch& batch = k.args.batch;
  const KeyConverter<F, 32> convert(thread / 32 * 32);
  std::uint32_t parity = 0;
  const std::int64_t num_pages = std::int64_t{batch.num_sequences} * k.blocks_per_sequence;
  for (std::int64_t i = blockIdx.x; i < num_pages; i += gridDim.x) {
    const ops::SequenceSlice& slice = batch.sequences[i / k.blocks_per_sequence];
    const int block = static_cast<int>(i % k.blocks_per_sequence);
    if (slice.num_tokens == 0 ||
        block >= ranked_end(k.args.shape, slice.first_position + slice.num_tokens - 1)) {
      continue;
    }
    if (thread == 0) {
      const std::byte* const row = planes.row(slice.block_table[block]);
      load_page<F>(ptx::shared_address(raw), row + planes.index_k.data(0, 0),
                   row + planes.index_k.scales(0, 0), ptx::shared_address(&full));
      ptx::cp_async_bulk_wait_group_read_0();  // the operand of the last round has left
    }
    __syncthreads();
    ptx::mbarrier_wait_parity(ptx::shared_address(&full), parity);
    parity ^= 1;
    convert(raw, table, operand);
    ptx::fence_proxy_async();
    __syncthreads();
    if (thread == 0) {
      ptx::cp_async_bulk_store(k.operands + i * kOperandBytes, ptx::shared_address(operand),
                               kOperandBytes);
      ptx::cp_async_bulk_commit_group();
    }
  }
  if (thread == 0) ptx::cp_async_bulk_wait_group_0();
}

}  // namespace winnow::cuda::index_prefill
