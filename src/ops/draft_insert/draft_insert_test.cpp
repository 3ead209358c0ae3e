#include "ops/draft_insert/draft_insert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "formats/bulk_codecs.h"
#include "ops/testing/attention_shapes.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

constexpr AttentionShape kHeads{
    .num_heads = 6, .num_kv_heads = 2, .head_dim = 48, .rotary_dim = 32};
constexpr int kLayers = 3;
constexpr std::int32_t kBlockTokens = 16;
constexpr std::int32_t kRows = 40;
constexpr std::int64_t kLayerWidth = std::int64_t{2} * kHeads.num_kv_heads * kHeads.head_dim;

CacheRowShape row_shape(CacheDType dtype) {
  return {.num_layers = 2,
          .index_layers = {0, 1},
          .num_kv_heads = 1,
          .head_dim = 32,
          .index_head_dim = 32,
          .block_tokens = kBlockTokens,
          .kv_dtype = CacheDType::kNvfp4,
          .index_dtype = CacheDType::kNvfp4,
          .drafter = CacheRowShape::Drafter{.num_layers = kLayers,
                                            .num_kv_heads = kHeads.num_kv_heads,
                                            .head_dim = kHeads.head_dim,
                                            .dtype = dtype}};
}

/// Norm and rotation in doubles, in place.
void finish(std::vector<double>& head, const float* norm, const float* cos, const float* sin) {
  double squares = 0.0;
  for (const double x : head) squares += x * x;
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(head.size()) + 1e-6);
  for (std::size_t d = 0; d < head.size(); ++d) head[d] *= inverse * (1.0 + double{norm[d]});
  for (std::size_t j = 0; j < 16; ++j) {
    const double a = head[j];
    const double b = head[j + 16];
    head[j] = a * double{cos[j]} - b * double{sin[j]};
    head[j + 16] = b * double{cos[j]} + a * double{sin[j]};
  }
}

class InsertCase {
 public:
  explicit InsertCase(std::uint64_t stream)
      : random_(stream),
        batch_({{0, 1}, {15, 2}, {5, 0}, {3, 40}, {32, 16}}, kBlockTokens, kRows, random_),
        rope_(64, kHeads.rotary_dim),
        projected_(random_.normals(batch_.num_tokens() * kLayers * kLayerWidth)),
        norms_(random_.normals(kLayers * kHeads.head_dim, 0.2F)),
        qkv_(random_.normals(batch_.num_tokens() * width())) {}

  static std::int64_t width() { return std::int64_t{10} * kHeads.head_dim; }
  const testing::TestBatch& batch() const { return batch_; }
  std::string describe() const { return random_.describe(); }

  void insert(const Backend& backend, const OpContext& context, const testing::TestCache& cache,
              const BatchView& batch, std::int64_t first) const {
    backend.draft_insert(context, {.projected = projected_.data() + first * kLayers * kLayerWidth,
                                   .k_norm = norms_.data(),
                                   .eps = 1e-6F,
                                   .rope = rope_.table(),
                                   .shape = kHeads,
                                   .num_layers = kLayers,
                                   .batch = batch,
                                   .cache = cache.view()});
  }

  std::vector<float> heads(const Backend& backend, const OpContext& context) const {
    std::vector<float> qkv = qkv_;
    backend.draft_heads(context, {.qkv = qkv.data(),
                                  .q_norm = norms_.data(),
                                  .k_norm = norms_.data() + kHeads.head_dim,
                                  .eps = 1e-6F,
                                  .rope = rope_.table(),
                                  .shape = kHeads,
                                  .batch = batch_.view()});
    return qkv;
  }

  /// Head `n` of the token's row of `values` as doubles, finished with norm `norm` if there is one.
  std::vector<double> expected(const std::vector<float>& values, std::int64_t first_value,
                               std::int32_t token, int norm) const {
    const auto begin = values.begin() + first_value;
    std::vector<double> head(begin, begin + kHeads.head_dim);
    const std::int64_t at = std::int64_t{batch_.view().positions[token]} * 16;
    if (norm >= 0) {
      finish(head, norms_.data() + norm * kHeads.head_dim, rope_.cos.data() + at,
             rope_.sin.data() + at);
    }
    return head;
  }
  const std::vector<float>& projected() const { return projected_; }
  const std::vector<float>& qkv() const { return qkv_; }

 private:
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestRope rope_;
  std::vector<float> projected_;
  std::vector<float> norms_;
  std::vector<float> qkv_;
};

TEST(DraftInsert, ReferenceStoresTheFormula) {
  testing::TestContext context;
  const InsertCase c(6100);
  SCOPED_TRACE(c.describe());
  const testing::TestCache cache(row_shape(CacheDType::kF32), kRows, DequantMode::kE4M3);
  const BatchView batch = c.batch().view();
  c.insert(make_scalar_backend(), context.get(), cache, batch, 0);
  for (std::int32_t t = 0; t < batch.num_tokens; ++t) {
    const auto& slice = batch.sequences[static_cast<std::size_t>(batch.sequence_of[t])];
    const std::int32_t position = batch.positions[t];
    std::byte* const row = cache.bytes().data() +
                           slice.block_table[position / kBlockTokens] * cache.layout().row_bytes();
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int n = 0; n < 2 * kHeads.num_kv_heads; ++n) {
        const bool is_key = n < kHeads.num_kv_heads;
        const CachePlane plane = is_key ? cache.layout().drafter_k(layer, n)
                                        : cache.layout().drafter_v(layer, n - kHeads.num_kv_heads);
        const auto expected =
            c.expected(c.projected(), (t * kLayers + layer) * kLayerWidth + n * kHeads.head_dim, t,
                       is_key ? layer : -1);
        std::vector<float> stored(expected.size());
        std::memcpy(stored.data(), plane.data(row, position % kBlockTokens),
                    stored.size() * sizeof(float));
        for (std::size_t d = 0; d < stored.size(); ++d) {
          ASSERT_NEAR(stored[d], expected[d], 1e-5) << t << " " << layer << " " << n << " " << d;
        }
      }
    }
  }
}

TEST(DraftInsert, ReferenceFinishesTheBlocksHeads) {
  testing::TestContext context;
  const InsertCase c(6150);
  const std::vector<float> qkv = c.heads(make_scalar_backend(), context.get());
  for (std::int32_t t = 0; t < c.batch().num_tokens(); ++t) {
    for (int n = 0; n < 10; ++n) {
      const std::int64_t at = t * InsertCase::width() + n * kHeads.head_dim;
      const auto expected = c.expected(c.qkv(), at, t, n < 6 ? 0 : n < 8 ? 1 : -1);
      for (std::size_t d = 0; d < expected.size(); ++d) {
        ASSERT_NEAR(qkv[static_cast<std::size_t>(at) + d], expected[d], 1e-5) << t << " " << n;
      }
    }
  }
}

// Spec 11 item 2, and trap 6: nothing but the tokens' own drafter slots is written.
TEST(DraftInsert, EveryBackendAndEveryChunkingWritesTheSamePool) {
  testing::TestContext reference(1);
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    const InsertCase c(6200);
    SCOPED_TRACE(c.describe());
    const testing::TestCache expected(row_shape(dtype), kRows, DequantMode::kE4M3);
    const BatchView batch = c.batch().view();
    c.insert(make_scalar_backend(), reference.get(), expected, batch, 0);
    testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
      if (backend.draft_insert == nullptr) return;
      for (const std::int32_t chunk : {1, 7, 128}) {
        const testing::TestCache cache(row_shape(dtype), kRows, DequantMode::kE4M3);
        for (std::int32_t first = 0; first < batch.num_tokens; first += chunk) {
          const testing::BatchPart part(batch, first, std::min(chunk, batch.num_tokens - first));
          c.insert(backend, context, cache, part.view(), first);
        }
        ASSERT_TRUE(testing::bits_equal(expected.bytes(), cache.bytes(),
                                        {kRows, cache.layout().row_bytes()}));
      }
    });
  }
}

TEST(DraftInsert, EveryBackendFinishesHeadsAlike) {
  testing::TestContext reference(1);
  const InsertCase c(6300);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    if (backend.draft_heads == nullptr) return;
    ASSERT_TRUE(testing::bits_equal(c.heads(make_scalar_backend(), reference.get()),
                                    c.heads(backend, context),
                                    {c.batch().num_tokens(), 10, kHeads.head_dim}));
  });
}

}  // namespace
}  // namespace winnow::ops
