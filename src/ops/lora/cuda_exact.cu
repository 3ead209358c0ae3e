// The products of an adapter by row. Rows are taken a few at a time; neighbours that have the same
// adapter (and expert) share a pass over its matrices, which changes no bit: every sum is of one
// row's own values in the order of linear.h.
//
// `shrink`: u = A · x, where A has few outputs and many columns, so that a block owns 16 outputs
// and shares out the columns. `expand`: y += B · (s ∘ u), where B has many outputs and few columns,
// so that a thread owns one output and walks the columns.
#include "ops/lora/cuda_exact.h"

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda_chunk.cuh"
#include "ops/linear/cuda_exact_split.cuh"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

/// Adapters of one launch: their addresses travel with it.
constexpr int kLaunchAdapters = 64;

/// Rows of one block, where rows are many: neighbours in a prompt have one adapter.
constexpr int kBlockRows = 4;
/// Up to here every row has blocks of its own: a step's sequences may all have other adapters.
constexpr std::int64_t kMaxRowsAlone = 64;

constexpr int kTilesOfBlock = kSplitThreads / static_cast<int>(kTileRows);  // of expand
constexpr std::int64_t kMaxSharedBytes = std::int64_t{48} << 10;  // without asking for more
static_assert(kMaxLoraRank * static_cast<std::int64_t>(sizeof(float)) <= kMaxSharedBytes);

struct Launch {
  const DeviceLoraSite* sites[kLaunchAdapters] = {};  // of adapters first_adapter, …; null: nothing
  std::int32_t first_adapter = 0;
  std::int32_t num_adapters = 0;
  const std::int32_t* adapter_of = nullptr;
  LoraOperands rows;
  std::int64_t inputs = 0;
  float* u = nullptr;
  std::int64_t u_stride = 0;

  /// Of a row; null where nothing is added.
  __device__ const DeviceLoraSite* site_of(std::int64_t row) const {
    const std::int64_t token = rows.token_of != nullptr ? rows.token_of[row] : row;
    if (token < 0) return nullptr;
    const std::int32_t adapter = adapter_of[token] - first_adapter;
    if (adapter < 0 || adapter >= num_adapters || sites[adapter] == nullptr) return nullptr;
    const DeviceLoraSite* const site =
        sites[adapter] + (rows.expert_of != nullptr ? rows.expert_of[row] : 0);
    return site->num_a > 0 ? site : nullptr;
  }
};

/// Calls run(site, first row, count) for the block's rows, kRows from kRows · blockIdx.x on, those
/// of one site at a time. By all threads alike.
template <int kRows, typename Run>
__device__ void for_each_run(const Launch& launch, const Run& run) {
  const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  const std::int64_t left = launch.rows.num_rows - first;
  const std::int64_t end = first + (left < kRows ? left : kRows);
  for (std::int64_t row = first; row < end;) {
    const DeviceLoraSite* const site = launch.site_of(row);
    std::int64_t next = row + 1;
    while (next < end && launch.site_of(next) == site) ++next;
    if (site != nullptr) run(*site, row, static_cast<std::int32_t>(next - row));
    row = next;
  }
}

/// u of tile blockIdx.y of A for a few rows.
template <int kRows>
__global__ void __launch_bounds__(kSplitThreads) exact_lora_shrink(const Launch launch) {
  for_each_run<kRows>(
      launch, [&](const DeviceLoraSite& site, std::int64_t first, std::int32_t count) {
        std::int64_t tile = blockIdx.y;
        int i = 0;
        while (i < site.num_a && tile >= site.a[i].num_tiles) tile -= site.a[i++].num_tiles;
        if (i == site.num_a) return;
        const Rows rows{.x = launch.rows.x,
                        .x_stride = launch.rows.x_stride,
                        .x_rows = launch.rows.x_rows,
                        .y = launch.u,
                        .y_stride = launch.u_stride,
                        .first = first,
                        .count = count};
        multiply_split_any<kRows>(site.a[i], tile, launch.inputs, rows, site.a[i].first_row);
        __syncthreads();  // what it shared is read to the end
      });
}

/// y[t][n] += Σ_j u[t][j] · B[n][j] for one output n of a tile, `u` by `pitch`.
template <QuantScheme kScheme, int kRows>
__device__ void add_output(const DeviceLoraPart& part, std::int64_t tile, int output,
                           const float* u, int pitch, std::int32_t count, float* y,
                           std::int64_t y_stride) {
  constexpr int kGroup = 32;
  float total[kRows] = {};
  for (std::int64_t chunk = 0; chunk < part.b.num_chunks; ++chunk) {
    const std::byte* const data =
        part.b.data + (tile * part.b.num_chunks + chunk) * chunk_bytes(kScheme);
    for (int half = 0; half < static_cast<int>(kChunkCols) / kGroup; ++half) {
      const int begin = static_cast<int>(chunk * kChunkCols) + half * kGroup;
      if (begin >= part.rank) break;
      float partial[kRows] = {};
#pragma unroll
      for (int j = 0; j < kGroup / 16; ++j) {
        const int col = begin + j * 16;
        float values[16];
        decode_step<kScheme>(data, output, half * 2 + j, values);
#pragma unroll
        for (int k = 0; k < 16; ++k) {
          if (col + k >= part.rank) break;
#pragma unroll
          for (int t = 0; t < kRows; ++t) {
            if (t < count) partial[t] = fmaf(u[t * pitch + col + k], values[k], partial[t]);
          }
        }
      }
#pragma unroll
      for (int t = 0; t < kRows; ++t) total[t] += partial[t];
    }
  }
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
    if (t < count) y[t * y_stride] += total[t];
  }
}

/// Sixteen tiles of B, over all parts, from 16 · blockIdx.y on, for a few rows. Shared memory:
/// their scaled u.
template <int kRows>
__global__ void __launch_bounds__(kSplitThreads) exact_lora_expand(const Launch launch) {
  extern __shared__ float scaled[];
  const int thread = static_cast<int>(threadIdx.x);
  const int output = thread % static_cast<int>(kTileRows);
  for_each_run<kRows>(
      launch, [&](const DeviceLoraSite& site, std::int64_t first, std::int32_t count) {
        __syncthreads();  // the run before has read its u
        for (int i = thread; i < count * site.rank; i += kSplitThreads) {
          const int t = i / site.rank;
          const int j = i - t * site.rank;
          scaled[i] = launch.u[(first + t) * launch.u_stride + j] * site.scales[j];
        }
        __syncthreads();
        std::int64_t tile = std::int64_t{blockIdx.y} * kTilesOfBlock + thread / kTileRows;
        int i = 0;
        while (i < site.num_parts && tile >= site.parts[i].b.num_tiles) {
          tile -= site.parts[i++].b.num_tiles;
        }
        if (i == site.num_parts) return;
        const DeviceLoraPart& part = site.parts[i];
        const std::int64_t row = tile * kTileRows + output;
        if (row >= part.b.rows) return;
        const float* const u = scaled + part.first_rank;
        float* const y = launch.rows.y + first * launch.rows.y_stride + part.first_row + row;
        if (part.b.scheme == QuantScheme::kF32) {
          add_output<QuantScheme::kF32, kRows>(part, tile, output, u, site.rank, count, y,
                                               launch.rows.y_stride);
        } else {
          add_output<QuantScheme::kBF16, kRows>(part, tile, output, u, site.rank, count, y,
                                                launch.rows.y_stride);
        }
      });
}

template <int kRows>
void submit(CUstream_st* stream, const Launch& launch, const CudaLoraTable::Extents& extents) {
  const auto blocks = [&](std::int64_t tiles) {
    return dim3(static_cast<unsigned>((launch.rows.num_rows + kRows - 1) / kRows),
                static_cast<unsigned>(tiles));
  };
  exact_lora_shrink<kRows><<<blocks(extents.a_tiles), kSplitThreads, 0, stream>>>(launch);
  check_launch("an adapter's A");
  const auto shared_bytes = static_cast<std::size_t>(extents.rank) * kRows * sizeof(float);
  exact_lora_expand<kRows><<<blocks((extents.b_tiles + kTilesOfBlock - 1) / kTilesOfBlock),
                             kSplitThreads, shared_bytes, stream>>>(launch);
  check_launch("an adapter's B");
}

}  // namespace

void add_lora(CUstream_st* stream, const LoraTables& tables, std::int64_t first_token,
              const LoraOperands& operands, float* u) {
  if (tables.rank() == 0 || operands.num_rows == 0) return;
  const std::span<const CudaLoraTable* const> of_adapter = tables.of_adapter();
  for (std::size_t first = 0; first < of_adapter.size(); first += kLaunchAdapters) {
    Launch launch{.first_adapter = static_cast<std::int32_t>(first),
                  .adapter_of = tables.adapter_of() + first_token,
                  .rows = operands,
                  .u = u,
                  .u_stride = tables.rank()};
    CudaLoraTable::Extents extents;
    for (const CudaLoraTable* const table : of_adapter.subspan(
             first, std::min<std::size_t>(kLaunchAdapters, of_adapter.size() - first))) {
      const std::int32_t adapter = launch.num_adapters++;
      if (table == nullptr) continue;
      launch.sites[adapter] = table->device();
      launch.inputs = table->extents().inputs;
      extents.rank = std::max(extents.rank, table->extents().rank);
      extents.a_tiles = std::max(extents.a_tiles, table->extents().a_tiles);
      extents.b_tiles = std::max(extents.b_tiles, table->extents().b_tiles);
    }
    if (extents.rank == 0) continue;
    const bool fits =
        extents.rank * kBlockRows * static_cast<std::int64_t>(sizeof(float)) <= kMaxSharedBytes;
    if (operands.num_rows <= kMaxRowsAlone || !fits) {
      submit<1>(stream, launch, extents);
    } else {
      submit<kBlockRows>(stream, launch, extents);
    }
  }
}

void lora(const ops::OpContext& context, const ops::LoraParams& params) {
  const LoraTables tables(&params.rows, [](const ops::LoraSite& site) { return site.table; });
  if (tables.rank() == 0 || params.num_rows == 0) return;
  DeviceScratch& scratch = context.cuda->scratch();
  const std::int64_t chunk =
      std::clamp<std::int64_t>(scratch.num_bytes() / lora_row_bytes(tables), 1, params.num_rows);
  float* const u = scratch.take_array<float>(chunk * tables.rank());
  for (std::int64_t first = 0; first < params.num_rows; first += chunk) {
    add_lora(context.cuda->stream(), tables, first,
             {.x = params.x + first * params.x_stride,
              .x_stride = params.x_stride,
              .y = params.y + first * params.y_stride,
              .y_stride = params.y_stride,
              .num_rows = std::min(chunk, params.num_rows - first)},
             u);
  }
  scratch.reset();
}

}  // namespace winnow::cuda::exact
