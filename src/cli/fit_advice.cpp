#include "cli/fit_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace winnow::cli {
namespace {

struct CacheChoice {
  const char* flags;
  CacheDType kv, index;
};

// From the largest to the smallest.
constexpr CacheChoice kChoices[] = {
    {"--kv-cache-dtype fp8 --attention-config.indexer_kv_dtype fp8", CacheDType::kFp8,
     CacheDType::kFp8},
    {"--kv-cache-dtype nvfp4 --attention-config.indexer_kv_dtype nvfp4", CacheDType::kNvfp4,
     CacheDType::kNvfp4},
};

std::int64_t row_bytes_of(CacheRowShape cache, const CacheChoice& choice) {
  cache.kv_dtype = choice.kv;
  cache.index_dtype = choice.index;
  return CacheRowLayout(cache).row_bytes();
}

bool takes(const CacheRowShape& cache, CacheDType dtype) {
  return dtype != CacheDType::kNvfp4 ||
         (cache.head_dim % 16 == 0 && cache.index_head_dim % 16 == 0);
}

std::int64_t pool_bytes(const PoolSizeRequest& request) {
  if (request.num_blocks_override) return *request.num_blocks_override * request.row_bytes;
  if (request.cache_memory_bytes) return *request.cache_memory_bytes;
  return static_cast<std::int64_t>(request.utilization * static_cast<double>(std::max<std::int64_t>(
                                                             request.available_bytes, 0)));
}

double gib(std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

}  // namespace

std::string fit_advice(const PoolSizeRequest& request, const CacheRowShape& cache) {
  const std::int64_t wanted = request.max_model_len.value_or(request.config_max_model_len);
  const std::int64_t num_blocks = (wanted + request.block_tokens - 1) / request.block_tokens;
  const std::int64_t bytes = pool_bytes(request);
  std::string out = "what would fit, each by itself:";
  const auto add = [&](const std::string& line) { out += "\n  " + line; };
  const auto tokens_with = [&](std::int64_t row_bytes) {
    return std::min(bytes / row_bytes * request.block_tokens, wanted);
  };

  if (const std::int64_t tokens = tokens_with(request.row_bytes); tokens > 0) {
    add(fmt::format("--max-model-len {}", tokens));
  }
  for (const CacheChoice& choice : kChoices) {
    if (!takes(cache, choice.kv)) continue;
    const std::int64_t row_bytes = row_bytes_of(cache, choice);
    const std::int64_t tokens = tokens_with(row_bytes);
    if (row_bytes >= request.row_bytes || tokens == 0) continue;
    add(tokens == wanted ? std::string(choice.flags)
                         : fmt::format("{} --max-model-len {}", choice.flags, tokens));
  }
  const std::int64_t needed = num_blocks * request.row_bytes;
  if (needed <= request.available_bytes) {
    if (request.num_blocks_override) {
      add(fmt::format("--num-gpu-blocks-override {}", num_blocks));
    } else if (request.cache_memory_bytes) {
      add(fmt::format("--kv-cache-memory-bytes {}", needed));
    } else {
      // Rounded up: the share that is printed must be enough.
      const double share =
          static_cast<double>(needed) / static_cast<double>(request.available_bytes);
      add(fmt::format("--gpu-memory-utilization {:.3f}",
                      std::min(1.0, std::ceil(share * 1e3) / 1e3)));
    }
  } else {
    add(fmt::format("{:.2f} GiB more memory ({:.2f} GiB are free, the pool needs {:.2f} GiB)",
                    gib(needed - request.available_bytes), gib(request.available_bytes),
                    gib(needed)));
  }
  return out;
}

}  // namespace winnow::cli
