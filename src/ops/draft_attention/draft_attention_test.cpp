#include "ops/draft_attention/draft_attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/bulk_codecs.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::TestSequence;

constexpr int kLayer = 1;

struct DraftShape {
  AttentionShape heads;
  std::int32_t block_tokens = 0;
  std::int32_t window = 0;
  CacheDType dtype = CacheDType::kF32;

  CacheRowShape row() const {
    return {.num_layers = 1,
            .index_layers = {},
            .num_kv_heads = 1,
            .head_dim = 16,
            .index_head_dim = 16,
            .block_tokens = block_tokens,
            .kv_dtype = CacheDType::kNvfp4,
            .index_dtype = CacheDType::kNvfp4,
            .drafter = CacheRowShape::Drafter{.num_layers = 2,
                                              .num_kv_heads = heads.num_kv_heads,
                                              .head_dim = heads.head_dim,
                                              .dtype = dtype}};
  }
  std::int64_t qkv_width() const {
    return std::int64_t{heads.num_heads + 2 * heads.num_kv_heads} * heads.head_dim;
  }
};

std::vector<DraftShape> draft_shapes() {
  std::vector<DraftShape> shapes;
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    // M3.1's heads, fewer of them; small with a window inside one block; odd everything.
    shapes.push_back({{.num_heads = 16, .num_kv_heads = 1, .head_dim = 128}, 128, 140, dtype});
    shapes.push_back({{.num_heads = 4, .num_kv_heads = 2, .head_dim = 32}, 16, 9, dtype});
    shapes.push_back({{.num_heads = 3, .num_kv_heads = 1, .head_dim = 48}, 20, 41, dtype});
  }
  return shapes;
}

/// No context, around the window's size and the edges of blocks, several lengths of block.
std::vector<TestSequence> mixed_sequences(const DraftShape& shape) {
  const std::int32_t window = shape.window;
  const std::int32_t block = shape.block_tokens;
  return {
      {0, 7},          {1, 1},      {window - 1, 7}, {window, 3},        {window + 1, 7},
      {window + 5, 0}, {block, 7},  {block - 1, 2},  {2 * block + 3, 7}, {window + block - 2, 7},
      {3 * block, 16}, {window, 20}};
}

/// Random blocks over a pool in which just the slots are written that some query of a block sees.
class DraftCase {
 public:
  DraftCase(const DraftShape& shape, std::uint64_t stream, float spread = 1.0F)
      : DraftCase(shape, mixed_sequences(shape), stream, spread) {}
  DraftCase(const DraftShape& shape, const std::vector<TestSequence>& sequences,
            std::uint64_t stream, float spread)
      : shape_(shape),
        random_(stream),
        batch_(sequences, shape.block_tokens, kRows, random_),
        cache_(shape.row(), kRows, DequantMode::kE4M3) {
    for (const SequenceSlice& slice : batch_.view().sequences) {
      if (slice.num_tokens == 0) continue;
      for (std::int32_t p = first_visible(slice.first_position, shape.window);
           p < slice.first_position; ++p) {
        for (int head = 0; head < shape.heads.num_kv_heads; ++head) {
          store(cache_.layout().drafter_k(kLayer, head), slice, p, spread);
          store(cache_.layout().drafter_v(kLayer, head), slice, p, 1.0F);
        }
      }
    }
    qkv_ = random_.normals(batch_.num_tokens() * shape.qkv_width());
  }

  std::string describe() const {
    return fmt::format("heads {}/{} of {}, block {}, window {}, {}; {}", shape_.heads.num_heads,
                       shape_.heads.num_kv_heads, shape_.heads.head_dim, shape_.block_tokens,
                       shape_.window, cache_dtype_name(shape_.dtype), random_.describe());
  }
  BatchView batch() const { return batch_.view(); }
  std::int64_t num_tokens() const { return batch_.num_tokens(); }
  std::vector<float>& qkv() { return qkv_; }

  std::vector<float> run(const Backend& backend, const OpContext& context) const {
    return run(backend, context, batch_.view(), qkv_.data());
  }
  std::vector<float> run(const Backend& backend, const OpContext& context, const BatchView& batch,
                         const float* qkv) const {
    const AttentionShape& heads = shape_.heads;
    std::vector<float> out = testing::poisoned(batch.num_tokens * heads.num_heads * heads.head_dim);
    backend.draft_attention(context, {.qkv = qkv,
                                      .shape = heads,
                                      .scale = 1.0F / std::sqrt(static_cast<float>(heads.head_dim)),
                                      .layer = kLayer,
                                      .window = shape_.window,
                                      .batch = batch,
                                      .cache = cache_.view(),
                                      .out = out.data()});
    return out;
  }

  /// Softmax attention of one query head in doubles, straight from the mask of the specification.
  std::vector<double> formula(std::int32_t token, std::int32_t head) const {
    const AttentionShape& heads = shape_.heads;
    const BatchView batch = batch_.view();
    const auto& slice = batch.sequences[static_cast<std::size_t>(batch.sequence_of[token])];
    const std::int32_t kv_head = head / (heads.num_heads / heads.num_kv_heads);
    const auto dim = static_cast<std::size_t>(heads.head_dim);
    std::vector<std::vector<float>> keys, values;
    for (std::int32_t t = 0; t < slice.first_position; ++t) {
      if (batch.positions[token] - t > shape_.window - 1) continue;
      keys.push_back(load(cache_.layout().drafter_k(kLayer, kv_head), slice, t));
      values.push_back(load(cache_.layout().drafter_v(kLayer, kv_head), slice, t));
    }
    for (std::int32_t j = 0; j < slice.num_tokens; ++j) {
      const float* const k = qkv_.data() + (slice.first_token + j) * shape_.qkv_width() +
                             (heads.num_heads + kv_head) * heads.head_dim;
      const float* const v = k + heads.num_kv_heads * heads.head_dim;
      keys.emplace_back(k, k + dim);
      values.emplace_back(v, v + dim);
    }
    const float* const q = qkv_.data() + token * shape_.qkv_width() + head * heads.head_dim;
    std::vector<double> scores;
    for (const auto& k : keys) {
      scores.push_back(std::inner_product(k.begin(), k.end(), q, 0.0) /
                       std::sqrt(static_cast<double>(dim)));
    }
    const double maximum = *std::max_element(scores.begin(), scores.end());
    std::vector<double> out(dim);
    double sum = 0.0;
    for (std::size_t t = 0; t < keys.size(); ++t) {
      const double weight = std::exp(scores[t] - maximum);
      sum += weight;
      for (std::size_t d = 0; d < dim; ++d) out[d] += weight * values[t][d];
    }
    for (double& x : out) x /= sum;
    return out;
  }

 private:
  static constexpr std::int32_t kRows = 120;

  std::byte* row_of(const SequenceSlice& slice, std::int32_t position) const {
    return cache_.bytes().data() + std::int64_t{slice.block_table[position / shape_.block_tokens]} *
                                       cache_.layout().row_bytes();
  }
  void store(const CachePlane& plane, const SequenceSlice& slice, std::int32_t position,
             float scale) {
    std::byte* const row = row_of(slice, position);
    const int slot = position % shape_.block_tokens;
    encode_cache_vector(plane.dtype, random_.normals(plane.dim, scale), plane.data(row, slot),
                        nullptr, kScalarCodecs);
  }
  std::vector<float> load(const CachePlane& plane, const SequenceSlice& slice,
                          std::int32_t position) const {
    std::vector<float> x(static_cast<std::size_t>(plane.dim));
    decode_cache_vector(plane.dtype, DequantMode::kExact,
                        plane.data(row_of(slice, position), position % shape_.block_tokens),
                        nullptr, x, kScalarCodecs);
    return x;
  }

  DraftShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestCache cache_;
  std::vector<float> qkv_;
};

TEST(DraftAttention, ReferenceIsNearTheFormula) {
  testing::TestContext context;
  std::uint64_t stream = 5700;
  for (const DraftShape& shape : draft_shapes()) {
    const DraftCase c(shape, ++stream);
    SCOPED_TRACE(c.describe());
    const auto out = c.run(make_scalar_backend(), context.get());
    for (std::int32_t t = 0; t < c.num_tokens(); ++t) {
      const std::int32_t head = t % shape.heads.num_heads;
      const auto expected = c.formula(t, head);
      const auto at =
          static_cast<std::size_t>((t * shape.heads.num_heads + head) * shape.heads.head_dim);
      for (std::size_t d = 0; d < expected.size(); ++d) {
        ASSERT_NEAR(out[at + d], expected[d], 1e-5) << t << " " << head << " " << d;
      }
    }
  }
}

TEST(DraftAttention, EveryBackendEqualsTheReference) {
  testing::TestContext reference(2);
  std::uint64_t stream = 5800;
  for (const DraftShape& shape : draft_shapes()) {
    for (const float spread : {1.0F, 30.0F}) {  // 30: weights underflow, maxima move
      const DraftCase c(shape, ++stream, spread);
      SCOPED_TRACE(c.describe());
      const auto expected = c.run(make_scalar_backend(), reference.get());
      testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
        if (backend.draft_attention == nullptr) return;
        ASSERT_TRUE(
            testing::bits_equal(expected, c.run(backend, context),
                                {c.num_tokens(), shape.heads.num_heads, shape.heads.head_dim}));
      });
    }
  }
}

TEST(DraftAttention, ASequenceAloneGivesTheSameBits) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    if (backend.draft_attention == nullptr) return;
    const DraftShape shape = draft_shapes()[7];
    const DraftCase c(shape, 5900);
    SCOPED_TRACE(c.describe());
    const auto all = c.run(backend, context);
    const std::int64_t width = std::int64_t{shape.heads.num_heads} * shape.heads.head_dim;
    for (const SequenceSlice& slice : c.batch().sequences) {
      const testing::BatchPart part(c.batch(), slice.first_token, slice.num_tokens);
      DraftCase copy(shape, 5900);
      const auto alone = c.run(backend, context, part.view(),
                               copy.qkv().data() + slice.first_token * shape.qkv_width());
      ASSERT_TRUE(testing::bits_equal(
          std::span(all).subspan(static_cast<std::size_t>(slice.first_token * width), alone.size()),
          alone, {slice.num_tokens, width}));
    }
  });
}

// Trap 2: a causal block would not notice a change of what comes after the query.
TEST(DraftAttention, TheFirstQuerySeesTheLastKeyOfItsBlock) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    if (backend.draft_attention == nullptr) return;
    const DraftShape shape = draft_shapes()[1];
    DraftCase c(shape, {{0, 7}, {20, 7}}, 5950, 1.0F);
    const auto before = c.run(backend, context);
    const std::int64_t value = 6 * shape.qkv_width() + shape.qkv_width() - 1;  // of token 6's v
    c.qkv()[static_cast<std::size_t>(value)] += 1.0F;
    const auto after = c.run(backend, context);
    const auto row = static_cast<std::size_t>(shape.heads.num_heads * shape.heads.head_dim);
    for (std::size_t t = 0; t < 14; ++t) {
      EXPECT_EQ(before[(t + 1) * row - 1] != after[(t + 1) * row - 1], t < 7) << t;
    }
  });
}

// The oldest visible key moves with the query: query j sees from P + j - (window - 1) on.
TEST(DraftAttention, TheWindowMovesWithTheQuery) {
  EXPECT_EQ(first_visible(4094, 4096), 0);
  EXPECT_EQ(first_visible(4095, 4096), 0);
  EXPECT_EQ(first_visible(4096, 4096), 1);
  EXPECT_EQ(first_visible(10000, 4096), 5905);
  EXPECT_EQ(first_visible(3, 1), 3);  // nothing cached
}

TEST(DraftAttention, AWindowShorterThanTheBlockLeavesTheBlockAlone) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    if (backend.draft_attention == nullptr) return;
    DraftShape shape = draft_shapes()[1];
    for (const std::int32_t window : {1, 2, 3, 6}) {
      shape.window = window;
      const DraftCase c(shape, {{40, 7}, {1, 7}, {16, 7}}, 5960, 1.0F);
      const auto out = c.run(backend, context);
      ASSERT_TRUE(testing::bits_equal(c.run(make_scalar_backend(), reference.get()), out,
                                      {std::ssize(out)}));
      for (std::int32_t t = 0; t < c.num_tokens(); ++t) {
        const auto expected = c.formula(t, 1);
        const auto at = static_cast<std::size_t>((t * 4 + 1) * 32);
        for (std::size_t d = 0; d < 32; ++d) ASSERT_NEAR(out[at + d], expected[d], 1e-5);
      }
    }
  });
}

}  // namespace
}  // namespace winnow::ops
