// How many KV blocks a machine's memory holds, decided before the pool is allocated.
#pragma once

#include <cstdint>
#include <optional>

namespace winnow {

struct PoolSizeRequest {
  std::int64_t available_bytes = 0;  // free for the pool, after weights and work buffers
  double utilization = 0.9;          // share of available_bytes to use, (0, 1]
  std::optional<std::int64_t> cache_memory_bytes;   // --kv-cache-memory-bytes: exact, wins
  std::optional<std::int64_t> num_blocks_override;  // --num-gpu-blocks-override: wins over both
  std::int64_t row_bytes = 0;                       // of one block, every layer
  std::int32_t block_tokens = 0;
  std::int32_t config_max_model_len = 0;      // what the checkpoint allows
  std::optional<std::int32_t> max_model_len;  // asked for; none: the largest that fits
};

struct PoolSize {
  std::int32_t num_blocks = 0;
  std::int32_t max_model_len = 0;   // asked for, or the largest that fits and config allows
  std::int64_t num_tokens = 0;      // num_blocks * block_tokens
  std::int64_t num_bytes = 0;       // num_blocks * row_bytes
  double sequences_at_max_len = 0;  // how many sequences of max_model_len fit at once
};

/// Throws Error{kInvalidArgument} when a field is out of range, Error{kOutOfMemory} when not even
/// one sequence of max_model_len fits: the message names the largest max_model_len that would.
PoolSize plan_pool_size(const PoolSizeRequest& request);

}  // namespace winnow
