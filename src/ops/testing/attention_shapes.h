// Head and cache shapes that the tests of qkv_insert, index_topk and attention share.
#pragma once

#include <string>
#include <vector>

#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::ops::testing {

struct AttentionCaseShape {
  AttentionShape heads;
  std::int32_t block_tokens = 0;
  CacheDType kv_dtype = CacheDType::kF32;
  CacheDType index_dtype = CacheDType::kF32;
  DequantMode mode = DequantMode::kExact;
  int num_layers = 3;

  /// "nvfp4_e4m3": of the K/V planes, as the name of a test's parameter.
  std::string cache_name() const;

  /// All layers but the first have an index cache; a single one has it too.
  CacheRowShape row() const;
  std::string describe() const;
};

/// M3's head shape with few heads, a small one with a small block, and odd ones, each in every
/// cache dtype and mode.
std::vector<AttentionCaseShape> attention_case_shapes();

/// M3.1's heads and block, in every cache dtype and mode that fast CUDA kernels read.
std::vector<AttentionCaseShape> fast_attention_shapes();

/// cos and sin of `num_positions` positions for theta 5e6.
struct TestRope {
  TestRope(std::int32_t num_positions, std::int32_t rotary_dim);
  RopeTable table() const { return {.cos = cos.data(), .sin = sin.data()}; }
  std::vector<float> cos;
  std::vector<float> sin;
};

}  // namespace winnow::ops::testing
