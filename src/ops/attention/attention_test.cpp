#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/bulk_codecs.h"
#include "ops/testing/attention_shapes.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::AttentionCaseShape;
using testing::TestSequence;

constexpr int kLayer = 1;

std::vector<TestSequence> mixed_sequences(const AttentionCaseShape& shape) {
  const std::int32_t block = shape.block_tokens;
  const std::int32_t top = shape.heads.top_k_blocks;
  return {{0, 1},
          {0, 4},
          {block - 1, 1},
          {block, 2},
          {7, 0},
          {0, block + 1},
          {(top + 1) * block + 1, 1},
          {2 * block - 3, 37},
          {(top + 2) * block - 1, 3}};
}

class AttentionCase {
 public:
  AttentionCase(const AttentionCaseShape& shape, std::uint64_t stream, float spread = 1.0F)
      : AttentionCase(shape, stream, spread, mixed_sequences(shape)) {}
  AttentionCase(const AttentionCaseShape& shape, std::uint64_t stream, float spread,
                const std::vector<TestSequence>& sequences)
      : shape_(shape),
        random_(stream),
        batch_(sequences, shape.block_tokens, kRows, random_),
        cache_(shape.row(), kRows, shape.mode) {
    cache_.fill(batch_.view(), kLayer, random_, spread);
    q_ = random_.normals(batch_.num_tokens() * shape.heads.num_heads * shape.heads.head_dim);
    for (std::int32_t t = 0; t < batch_.num_tokens(); ++t) {
      for (std::int32_t g = 0; g < shape.heads.num_index_heads; ++g) choose_blocks(t);
    }
  }

  std::string describe() const { return shape_.describe() + " " + random_.describe(); }
  std::int64_t num_tokens() const { return batch_.num_tokens(); }

  std::vector<float> run(const Backend& backend, const OpContext& context, bool is_sparse) const {
    const AttentionShape& heads = shape_.heads;
    std::vector<float> out = testing::poisoned(num_tokens() * heads.num_heads * heads.head_dim);
    backend.attention(context, {.q = q_.data(),
                                .shape = heads,
                                .scale = 1.0F / std::sqrt(static_cast<float>(heads.head_dim)),
                                .layer = kLayer,
                                .batch = batch_.view(),
                                .cache = cache_.view(),
                                .blocks = is_sparse ? blocks_.data() : nullptr,
                                .out = out.data()});
    return out;
  }

  /// Softmax attention of one query head in doubles, over the decoded cache.
  std::vector<double> formula(std::int32_t token, std::int32_t head, bool is_sparse) const;

 private:
  static constexpr std::int32_t kRows = 80;

  /// A random list for one (token, index head): its own block and others, ascending, then -1.
  void choose_blocks(std::int32_t t) {
    const std::int32_t own = batch_.view().positions[t] / shape_.block_tokens;
    const auto top_k = static_cast<std::size_t>(shape_.heads.top_k_blocks);
    std::vector<std::int32_t> list = random_.permutation(own);
    list.resize(std::min(list.size(), top_k - 1));
    if (random_.below(4) == 0 && !list.empty()) list.pop_back();
    list.push_back(own);
    std::ranges::sort(list);
    list.resize(top_k, -1);
    blocks_.insert(blocks_.end(), list.begin(), list.end());
  }

  std::vector<float> decode(const CachePlane& plane, const std::byte* row, int token) const {
    std::vector<float> x(static_cast<std::size_t>(plane.dim));
    decode_cache_vector(plane.dtype, shape_.mode, plane.data(row, token), plane.scales(row, token),
                        x, kScalarCodecs);
    return x;
  }

  AttentionCaseShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestCache cache_;
  std::vector<float> q_;
  std::vector<std::int32_t> blocks_;
};

std::vector<double> AttentionCase::formula(std::int32_t token, std::int32_t head,
                                           bool is_sparse) const {
  const AttentionShape& heads = shape_.heads;
  const BatchView batch = batch_.view();
  const std::int32_t position = batch.positions[token];
  const auto& slice = batch.sequences[static_cast<std::size_t>(batch.sequence_of[token])];
  const std::int32_t kv_head = head / (heads.num_heads / heads.num_kv_heads);
  const auto list =
      blocks_.begin() + (token * heads.num_index_heads + kv_head) * heads.top_k_blocks;
  const float* const q = q_.data() + (token * heads.num_heads + head) * heads.head_dim;
  std::vector<double> out(static_cast<std::size_t>(heads.head_dim));
  double sum = 0.0;
  for (std::int32_t p = 0; p <= position; ++p) {
    const std::int32_t block = p / shape_.block_tokens;
    if (is_sparse &&
        std::find(list, list + heads.top_k_blocks, block) == list + heads.top_k_blocks) {
      continue;
    }
    const std::byte* const row =
        cache_.view().pool + slice.block_table[block] * cache_.layout().row_bytes();
    const auto k = decode(cache_.layout().k(kLayer, kv_head), row, p % shape_.block_tokens);
    const auto v = decode(cache_.layout().v(kLayer, kv_head), row, p % shape_.block_tokens);
    double score = 0.0;
    for (std::size_t d = 0; d < k.size(); ++d) score += double{q[d]} * k[d];
    const double weight = std::exp(score / std::sqrt(static_cast<double>(heads.head_dim)));
    sum += weight;
    for (std::size_t d = 0; d < v.size(); ++d) out[d] += weight * v[d];
  }
  for (double& x : out) x /= sum;
  return out;
}

TEST(Attention, ReferenceIsNearTheFormula) {
  testing::TestContext context;
  std::uint64_t stream = 700;
  for (const AttentionCaseShape& shape : testing::attention_case_shapes()) {
    if (shape.mode != DequantMode::kExact) continue;
    const AttentionCase c(shape, ++stream);
    SCOPED_TRACE(c.describe());
    for (const bool is_sparse : {false, true}) {
      const auto out = c.run(make_scalar_backend(), context.get(), is_sparse);
      for (std::int32_t t = 0; t < c.num_tokens(); ++t) {
        const std::int32_t head = t % shape.heads.num_heads;
        const auto expected = c.formula(t, head, is_sparse);
        for (std::size_t d = 0; d < expected.size(); ++d) {
          const auto at =
              static_cast<std::size_t>((t * shape.heads.num_heads + head) * shape.heads.head_dim);
          ASSERT_NEAR(out[at + d], expected[d], 1e-5) << t << " " << head << " " << d;
        }
      }
    }
  }
}

TEST(Attention, EveryBackendEqualsTheReference) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 800;
    for (const AttentionCaseShape& shape : testing::attention_case_shapes()) {
      for (const float spread : {1.0F, 30.0F}) {  // 30: weights underflow, maxima move
        const AttentionCase c(shape, ++stream, spread);
        SCOPED_TRACE(c.describe());
        for (const bool is_sparse : {false, true}) {
          ASSERT_TRUE(
              testing::bits_equal(c.run(make_scalar_backend(), reference.get(), is_sparse),
                                  c.run(backend, context, is_sparse),
                                  {c.num_tokens(), shape.heads.num_heads, shape.heads.head_dim}));
        }
      }
    }
  });
}

// Few enough tokens to run under a tool that watches every access.
TEST(Attention, AFewTokensOfEachCacheEqualTheReference) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 900;
    for (const AttentionCaseShape& shape : testing::attention_case_shapes()) {
      const AttentionCase c(shape, ++stream, 1.0F, {{0, 1}, {shape.block_tokens - 1, 2}});
      SCOPED_TRACE(c.describe());
      for (const bool is_sparse : {false, true}) {
        ASSERT_TRUE(
            testing::bits_equal(c.run(make_scalar_backend(), reference.get(), is_sparse),
                                c.run(backend, context, is_sparse),
                                {c.num_tokens(), shape.heads.num_heads, shape.heads.head_dim}));
      }
    }
  });
}

// Fault B3: offsets beyond 2^32 bytes, at the highest row of a pool that only touches that row.
TEST(Attention, ReadsTheHighestRowOfAPoolAboveFourGigabytes) {
  AttentionCaseShape shape = testing::attention_case_shapes()[0];
  const CacheRowLayout layout(shape.row());
  const auto num_rows = static_cast<std::int32_t>((std::int64_t{5} << 30) / layout.row_bytes());
  const Buffer pool(layout.row_bytes() * num_rows, "pool above 4 GiB");
  const std::int32_t table[] = {num_rows - 1};
  const std::int32_t zero = 0;
  const SequenceSlice slice{
      .first_token = 0, .num_tokens = 1, .first_position = 0, .block_table = table};
  std::byte* const row = pool.data() + std::int64_t{num_rows - 1} * layout.row_bytes();
  testing::RandomInputs random(900);
  const std::vector<float> v = random.normals(shape.heads.head_dim);
  for (int head = 0; head < shape.heads.num_kv_heads; ++head) {
    const CachePlane plane = layout.v(kLayer, head);
    encode_cache_vector(plane.dtype, v, plane.data(row, 0), plane.scales(row, 0), kScalarCodecs);
  }
  const auto q = random.normals(shape.heads.num_heads * shape.heads.head_dim);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::vector<float> out = testing::poisoned(std::ssize(q));
    backend.attention(context,
                      {.q = q.data(),
                       .shape = shape.heads,
                       .scale = 0.1F,
                       .layer = kLayer,
                       .batch = {.num_tokens = 1,
                                 .positions = &zero,
                                 .sequence_of = &zero,
                                 .sequences = {&slice, 1}},
                       .cache = {.pool = pool.data(), .layout = &layout, .mode = shape.mode},
                       .blocks = nullptr,
                       .out = out.data()});
    for (int head = 0; head < shape.heads.num_heads; ++head) {
      ASSERT_TRUE(testing::bits_equal(
          v,
          std::span(out).subspan(static_cast<std::size_t>(head * shape.heads.head_dim), v.size()),
          {std::ssize(v)}));
    }
  });
}

}  // namespace
}  // namespace winnow::ops
