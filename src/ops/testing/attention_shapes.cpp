#include "ops/testing/attention_shapes.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace winnow::ops::testing {

CacheRowShape AttentionCaseShape::row() const {
  std::vector<int> index_layers;
  for (int layer = num_layers > 1 ? 1 : 0; layer < num_layers; ++layer) {
    index_layers.push_back(layer);
  }
  return {.num_layers = num_layers,
          .index_layers = std::move(index_layers),
          .num_kv_heads = heads.num_kv_heads,
          .head_dim = heads.head_dim,
          .index_head_dim = heads.index_head_dim,
          .block_tokens = block_tokens,
          .kv_dtype = kv_dtype,
          .index_dtype = index_dtype,
          .drafter = {}};
}

std::string AttentionCaseShape::cache_name() const {
  return fmt::format("{}_{}", cache_dtype_name(kv_dtype), dequant_mode_name(mode));
}

std::string AttentionCaseShape::describe() const {
  return fmt::format("heads {}/{} x {} rotary {} index {} x {} block {} top {} {} {} {}",
                     heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.rotary_dim,
                     heads.num_index_heads, heads.index_head_dim, block_tokens, heads.top_k_blocks,
                     cache_dtype_name(kv_dtype), cache_dtype_name(index_dtype),
                     dequant_mode_name(mode));
}

std::vector<AttentionCaseShape> attention_case_shapes() {
  constexpr AttentionShape kM3{.num_heads = 8,
                               .num_kv_heads = 2,
                               .head_dim = 128,
                               .rotary_dim = 64,
                               .num_index_heads = 2,
                               .index_head_dim = 128,
                               .top_k_blocks = 16};
  constexpr AttentionShape kSmall{.num_heads = 8,
                                  .num_kv_heads = 2,
                                  .head_dim = 32,
                                  .rotary_dim = 16,
                                  .num_index_heads = 2,
                                  .index_head_dim = 32,
                                  .top_k_blocks = 4};
  constexpr AttentionShape kOdd{.num_heads = 3,
                                .num_kv_heads = 1,
                                .head_dim = 48,
                                .rotary_dim = 48,
                                .num_index_heads = 1,
                                .index_head_dim = 48,
                                .top_k_blocks = 3,
                                .local_blocks = 2,
                                .init_blocks = 1};
  std::vector<AttentionCaseShape> shapes;
  constexpr CacheDType kDTypes[] = {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8,
                                    CacheDType::kNvfp4};
  for (const CacheDType dtype : kDTypes) {
    for (const DequantMode mode : {DequantMode::kExact, DequantMode::kE4M3}) {
      for (const auto& [heads, block_tokens] : {std::pair{kM3, 128}, {kSmall, 16}, {kOdd, 20}}) {
        shapes.push_back({.heads = heads,
                          .block_tokens = block_tokens,
                          .kv_dtype = dtype,
                          .index_dtype = dtype,
                          .mode = mode});
      }
    }
  }
  shapes.push_back({kSmall, 16, CacheDType::kNvfp4, CacheDType::kBF16, DequantMode::kE4M3});
  shapes.push_back({kSmall, 16, CacheDType::kBF16, CacheDType::kNvfp4, DequantMode::kE4M3});
  shapes.push_back({kM3, 128, CacheDType::kFp8, CacheDType::kNvfp4, DequantMode::kExact});
  return shapes;
}

std::vector<AttentionCaseShape> fast_attention_shapes() {
  constexpr AttentionShape kM31{.num_heads = 64,
                                .num_kv_heads = 4,
                                .head_dim = 128,
                                .rotary_dim = 64,
                                .num_index_heads = 4,
                                .index_head_dim = 128,
                                .top_k_blocks = 16};
  using enum CacheDType;
  using enum DequantMode;
  // One layer: the pool goes to the device for every call.
  return {{kM31, 128, kNvfp4, kNvfp4, kE4M3, 1},
          {kM31, 128, kNvfp4, kNvfp4, kExact, 1},
          {kM31, 128, kFp8, kFp8, kE4M3, 1},
          {kM31, 128, kBF16, kBF16, kE4M3, 1}};
}

TestRope::TestRope(std::int32_t num_positions, std::int32_t rotary_dim) {
  for (std::int32_t p = 0; p < num_positions; ++p) {
    for (std::int32_t j = 0; j < rotary_dim / 2; ++j) {
      const double frequency = std::pow(5e6, -2.0 * j / rotary_dim);
      cos.push_back(static_cast<float>(std::cos(p * frequency)));
      sin.push_back(static_cast<float>(std::sin(p * frequency)));
    }
  }
}

}  // namespace winnow::ops::testing
