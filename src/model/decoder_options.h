// What a user may choose about the forward pass. `none` means what the checkpoint asks for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/cache_codec.h"
#include "formats/cache_row.h"

namespace winnow {

struct DecoderOptions {
  std::optional<CacheDType> kv_dtype = std::nullopt;     // none: ModelConfig::default_cache_dtype()
  std::optional<CacheDType> index_dtype = std::nullopt;  // none: the same
  /// none: e4m3 when the checkpoint asks for NVFP4 caches (M3.1 was trained with it), else exact.
  std::optional<DequantMode> dequant = std::nullopt;
  /// Layers after which the residual stream is kept for Decoder::captured(), ascending: what a
  /// drafter's context is made of. Results are the same with and without.
  std::vector<std::int32_t> captured_layers = {};
  /// Room in the cache row for a drafter's context (Drafter::insert_context writes it).
  std::optional<CacheRowShape::Drafter> drafter_cache = std::nullopt;
  std::int32_t max_num_batched_tokens = 2048;  // work buffers are sized for it
  /// Positions beyond max_position_embeddings to allow for; RoPE has rows up to the larger of both.
  std::int64_t max_positions = 0;
  /// Rows of the KV pool; 0: call allocate_pool() before the first step.
  std::int32_t num_blocks = 0;
  int num_threads = 0;  // 0: one per physical core
  bool pin_threads = false;
};

}  // namespace winnow
