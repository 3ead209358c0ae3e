#include "engine/pool_size.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace winnow {
namespace {

constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();  // ids are 32 bits

[[noreturn]] void refuse(const char* param, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {}, param);
}

void check_positive(const char* name, std::int64_t value) {
  if (value <= 0) refuse(name, fmt::format("{} must be above 0, got {}", name, value));
}

std::int64_t blocks_of(const PoolSizeRequest& request) {
  if (request.num_blocks_override) {
    check_positive("num_gpu_blocks_override", *request.num_blocks_override);
    return std::min(*request.num_blocks_override, kMaxBlocks);
  }
  std::int64_t bytes = 0;
  if (request.cache_memory_bytes) {
    check_positive("kv_cache_memory_bytes", *request.cache_memory_bytes);
    bytes = *request.cache_memory_bytes;
  } else {
    if (!(request.utilization > 0.0) || request.utilization > 1.0) {
      refuse("gpu_memory_utilization",
             fmt::format("gpu_memory_utilization must be in (0, 1], got {}", request.utilization));
    }
    bytes =
        static_cast<std::int64_t>(request.utilization * static_cast<double>(std::max<std::int64_t>(
                                                            request.available_bytes, 0)));
  }
  return std::min(bytes / request.row_bytes, kMaxBlocks);
}

}  // namespace

PoolSize plan_pool_size(const PoolSizeRequest& request) {
  check_positive("row_bytes", request.row_bytes);
  check_positive("block_size", request.block_tokens);
  check_positive("max_model_len of the checkpoint", request.config_max_model_len);
  if (request.max_model_len) check_positive("max_model_len", *request.max_model_len);

  const std::int64_t num_blocks = blocks_of(request);
  const std::int64_t num_tokens = num_blocks * request.block_tokens;
  const std::int64_t wanted = request.max_model_len.value_or(request.config_max_model_len);
  const std::int64_t fits = std::min<std::int64_t>(num_tokens, wanted);
  const bool is_too_small = request.max_model_len ? num_tokens < wanted : num_tokens == 0;
  if (is_too_small) {
    const std::int64_t needed =
        (wanted + request.block_tokens - 1) / request.block_tokens * request.row_bytes;
    throw Error(
        ErrorCode::kOutOfMemory,
        fmt::format(
            "the KV cache has room for {} tokens ({} blocks of {}, {:.2f} GiB), too few for "
            "one sequence of max_model_len = {}, which needs {:.2f} GiB; the largest "
            "max_model_len that fits is {}",
            num_tokens, num_blocks, request.block_tokens,
            static_cast<double>(num_blocks * request.row_bytes) / 0x1p30, wanted,
            static_cast<double>(needed) / 0x1p30, num_tokens),
        "lower --max-model-len, raise --kv-cache-memory-bytes, or choose a smaller "
        "--kv-cache-dtype",
        "max_model_len");
  }
  return {.num_blocks = static_cast<std::int32_t>(num_blocks),
          .max_model_len = static_cast<std::int32_t>(fits),
          .num_tokens = num_tokens,
          .num_bytes = num_blocks * request.row_bytes,
          .sequences_at_max_len = static_cast<double>(num_tokens) / static_cast<double>(fits)};
}

}  // namespace winnow
