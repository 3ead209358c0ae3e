// One layer's cache planes as plain values for kernels: CacheRowLayout is an object of the host, so
// its offsets are resolved before a launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "ops/batch_view.h"
#include "ops/cache_view.h"

namespace winnow::cuda {

/// CachePlane of every kv head of a layer: head h lies h * head_stride bytes further.
struct HeadPlanes {
  std::int64_t data_offset = 0;
  std::int64_t scale_offset = 0;
  std::int64_t head_stride = 0;
  std::int32_t data_stride = 0;   // bytes of one token
  std::int32_t scale_stride = 0;  // 0 unless nvfp4
  std::int32_t dim = 0;
  CacheDType dtype = CacheDType::kBF16;

  WINNOW_HOST_DEVICE std::int64_t data(int head, int token) const {
    return data_offset + head * head_stride + std::int64_t{token} * data_stride;
  }
  WINNOW_HOST_DEVICE std::int64_t scales(int head, int token) const {
    return scale_offset + head * head_stride + std::int64_t{token} * scale_stride;
  }
};

/// What a kernel reads or writes of the KV pool in one layer. Offsets above are from the start of a
/// row; row(b) is that start for row b of the pool.
struct CachePlanes {
  std::byte* pool = nullptr;
  std::int64_t row_bytes = 0;
  std::int32_t block_tokens = 0;
  DequantMode mode = DequantMode::kE4M3;
  bool casts_query = false;        // of attention, to E4M3 and back
  bool casts_index_query = false;  // of the indexer
  bool has_index = false;
  HeadPlanes k;
  HeadPlanes v;
  HeadPlanes index_k;  // one head; only with has_index

  WINNOW_HOST_DEVICE std::byte* row(std::int32_t b) const { return pool + b * row_bytes; }
};

inline HeadPlanes head_planes(const CachePlane& plane, std::int64_t head_stride) {
  return {.data_offset = plane.data_offset,
          .scale_offset = plane.scale_offset,
          .head_stride = head_stride,
          .data_stride = static_cast<std::int32_t>(plane.data_stride),
          .scale_stride = static_cast<std::int32_t>(plane.scale_stride),
          .dim = plane.dim,
          .dtype = plane.dtype};
}

inline CachePlanes cache_planes(const ops::CacheView& cache, int layer) {
  const CacheRowLayout& layout = *cache.layout;
  const CacheRowShape& shape = layout.shape();
  CachePlanes planes{.pool = cache.pool,
                     .row_bytes = layout.row_bytes(),
                     .block_tokens = shape.block_tokens,
                     .mode = cache.mode,
                     .casts_query = ops::casts_query(shape.kv_dtype, cache.mode),
                     .casts_index_query = ops::casts_query(shape.index_dtype, cache.mode),
                     .has_index = layout.has_index(layer),
                     .k = head_planes(layout.k(layer, 0), layout.head_bytes()),
                     .v = head_planes(layout.v(layer, 0), layout.head_bytes()),
                     .index_k = {}};
  if (planes.has_index) planes.index_k = head_planes(layout.index_k(layer), 0);
  return planes;
}

/// The drafter's planes of one of its layers.
inline CachePlanes drafter_planes(const ops::CacheView& cache, int layer) {
  const CacheRowLayout& layout = *cache.layout;
  const CachePlane first = layout.drafter_k(layer, 0);
  const std::int64_t head_stride = layout.shape().drafter->num_kv_heads > 1
                                       ? layout.drafter_k(layer, 1).data_offset - first.data_offset
                                       : 0;
  return {.pool = cache.pool,
          .row_bytes = layout.row_bytes(),
          .block_tokens = layout.shape().block_tokens,
          .mode = DequantMode::kExact,
          .k = head_planes(first, head_stride),
          .v = head_planes(layout.drafter_v(layer, 0), head_stride),
          .index_k = {}};
}

/// BatchView without its span, which kernels do not need: all pointers are of the device.
struct DeviceBatch {
  std::int32_t num_tokens = 0;
  std::int32_t num_sequences = 0;
  const std::int32_t* positions = nullptr;
  const std::int32_t* sequence_of = nullptr;
  const ops::SequenceSlice* sequences = nullptr;

  /// Row of the pool that holds logical block `block` of token t's sequence.
  WINNOW_HOST_DEVICE std::int32_t pool_row(std::int32_t t, std::int32_t block) const {
    return sequences[sequence_of[t]].block_table[block];
  }
};

inline DeviceBatch device_batch(const ops::BatchView& batch) {
  return {.num_tokens = batch.num_tokens,
          .num_sequences = static_cast<std::int32_t>(batch.sequences.size()),
          .positions = batch.positions,
          .sequence_of = batch.sequence_of,
          .sequences = batch.sequences.data()};
}

}  // namespace winnow::cuda
