#include "ops/index_topk/index_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "formats/bulk_codecs.h"
#include "ops/testing/attention_shapes.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::AttentionCaseShape;
using testing::TestSequence;

constexpr int kLayer = 2;

std::vector<std::int32_t> run(const Backend& backend, const OpContext& context,
                              const AttentionCaseShape& shape, const BatchView& batch,
                              const CacheView& cache, const std::vector<float>& index_q) {
  std::vector<std::int32_t> blocks(
      static_cast<std::size_t>(batch.num_tokens * shape.heads.num_index_heads *
                               shape.heads.top_k_blocks),
      -77);
  backend.index_topk(context, {.index_q = index_q.data(),
                               .shape = shape.heads,
                               .layer = kLayer,
                               .batch = batch,
                               .cache = cache,
                               .blocks = blocks.data()});
  return blocks;
}

/// Contexts around block edges and around top_k blocks, decode and prefill, an empty sequence.
std::vector<TestSequence> mixed_sequences(const AttentionCaseShape& shape) {
  const std::int32_t block = shape.block_tokens;
  const std::int32_t top = shape.heads.top_k_blocks;
  return {{0, 1},
          {0, 4},
          {block - 1, 1},
          {block, 1},
          {7, 0},
          {0, block + 1},
          {top * block - 1, 3},
          {(top + 1) * block, 1},
          {3 * block, 37},
          {0, 2 * block},
          {(top + 3) * block + 1, 5}};
}

std::int32_t num_rows(const std::vector<TestSequence>& sequences, std::int32_t block_tokens) {
  std::int32_t rows = 3;
  for (const TestSequence& s : sequences) {
    rows += (s.first_position + s.num_tokens + block_tokens - 1) / block_tokens;
  }
  return rows;
}

TEST(IndexTopk, EveryBackendEqualsTheReference) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 500;
    for (const AttentionCaseShape& shape : testing::attention_case_shapes()) {
      testing::RandomInputs random(++stream);
      SCOPED_TRACE(shape.describe() + " " + random.describe());
      const auto sequences = mixed_sequences(shape);
      const std::int32_t rows = num_rows(sequences, shape.block_tokens);
      const testing::TestBatch batch(sequences, shape.block_tokens, rows, random);
      const testing::TestCache cache(shape.row(), rows, shape.mode);
      cache.fill(batch.view(), kLayer, random);
      const auto index_q = random.normals(batch.num_tokens() * shape.heads.num_index_heads *
                                          shape.heads.index_head_dim);
      ASSERT_TRUE(testing::bits_equal(
          run(make_scalar_backend(), reference.get(), shape, batch.view(), cache.view(), index_q),
          run(backend, context, shape, batch.view(), cache.view(), index_q),
          {batch.num_tokens(), shape.heads.num_index_heads, shape.heads.top_k_blocks}));
    }
  });
}

/// Keys and queries of small integers: every score is exact, and ties are common.
class IntegerCase {
 public:
  IntegerCase(AttentionCaseShape shape, const std::vector<TestSequence>& sequences,
              std::uint64_t stream)
      : shape_(std::move(shape)),
        random_(stream),
        batch_(sequences, shape_.block_tokens, num_rows(sequences, shape_.block_tokens), random_),
        cache_(shape_.row(), num_rows(sequences, shape_.block_tokens), shape_.mode) {
    index_q_ =
        integers(batch_.num_tokens() * shape_.heads.num_index_heads * shape_.heads.index_head_dim);
    for (const SequenceSlice& slice : batch_.view().sequences) {
      std::vector<std::vector<float>>& keys = keys_.emplace_back();
      for (std::int32_t p = 0; p < slice.first_position + slice.num_tokens; ++p) {
        keys.push_back(integers(shape_.heads.index_head_dim));
        store(slice, p, keys.back());
      }
    }
  }

  std::string describe() const { return shape_.describe() + " " + random_.describe(); }
  std::vector<std::int32_t> run_on(const Backend& backend, const OpContext& context) const {
    return run(backend, context, shape_, batch_.view(), cache_.view(), index_q_);
  }

  /// The specification, by brute force: a score per block, forced ones at +inf, a stable sort.
  std::vector<std::int32_t> expected() const {
    std::vector<std::int32_t> out;
    const BatchView batch = batch_.view();
    for (std::int32_t t = 0; t < batch.num_tokens; ++t) {
      for (std::int32_t g = 0; g < shape_.heads.num_index_heads; ++g) {
        const std::vector<std::int32_t> chosen = choose(batch, t, g);
        out.insert(out.end(), chosen.begin(), chosen.end());
      }
    }
    return out;
  }

 private:
  std::vector<float> integers(std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& x : values) x = static_cast<float>(random_.below(3) - 1);
    return values;
  }

  void store(const SequenceSlice& slice, std::int32_t p, std::span<const float> key) const {
    const CachePlane plane = cache_.layout().index_k(kLayer);
    std::byte* const row =
        cache_.view().pool +
        std::int64_t{slice.block_table[p / shape_.block_tokens]} * cache_.layout().row_bytes();
    encode_cache_vector(plane.dtype, key, plane.data(row, p % shape_.block_tokens),
                        plane.scales(row, p % shape_.block_tokens), kScalarCodecs);
  }

  std::vector<std::int32_t> choose(const BatchView& batch, std::int32_t t, std::int32_t g) const {
    const AttentionShape& heads = shape_.heads;
    const std::int32_t position = batch.positions[t];
    const auto& keys = keys_[static_cast<std::size_t>(batch.sequence_of[t])];
    const float* const q = index_q_.data() + (t * heads.num_index_heads + g) * heads.index_head_dim;
    const std::int32_t last = position / shape_.block_tokens;
    std::vector<double> scores(static_cast<std::size_t>(last) + 1,
                               -std::numeric_limits<double>::infinity());
    for (std::int32_t p = 0; p <= position; ++p) {
      double score = 0.0;
      for (std::int32_t d = 0; d < heads.index_head_dim; ++d) {
        score += double{q[d]} * keys[static_cast<std::size_t>(p)][static_cast<std::size_t>(d)];
      }
      double& best = scores[static_cast<std::size_t>(p / shape_.block_tokens)];
      best = std::max(best, score);
    }
    std::vector<std::int32_t> order;
    for (std::int32_t b = 0; b <= last; ++b) {
      if (b > last - heads.local_blocks || b < heads.init_blocks) {
        scores[static_cast<std::size_t>(b)] = std::numeric_limits<double>::infinity();
      }
      order.push_back(b);
    }
    std::ranges::stable_sort(order, std::greater(),
                             [&](std::int32_t b) { return scores[static_cast<std::size_t>(b)]; });
    order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(heads.top_k_blocks)));
    std::ranges::sort(order);
    order.resize(static_cast<std::size_t>(heads.top_k_blocks), -1);
    return order;
  }

  AttentionCaseShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestCache cache_;
  std::vector<float> index_q_;
  std::vector<std::vector<std::vector<float>>> keys_;  // [sequence][position][dim]
};

// Faults A1, A3, A7: selections by the specification at every count of tokens, with exact ties,
// fewer blocks than top-k, chunks that start late, and the newest block once and never twice.
TEST(IndexTopk, EqualsBruteForceOnExactTies) {
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 600;
    for (const AttentionCaseShape& shape : testing::attention_case_shapes()) {
      const IntegerCase c(shape, mixed_sequences(shape), ++stream);
      SCOPED_TRACE(c.describe());
      ASSERT_TRUE(testing::bits_equal(
          c.expected(), c.run_on(backend, context),
          {std::ssize(c.expected()) / shape.heads.top_k_blocks, shape.heads.top_k_blocks}));
    }
  });
}

// Fault A3: contexts of 1 to top-k + 1 blocks, at decode and at prefill.
TEST(IndexTopk, EveryBlockCountAroundTopK) {
  const AttentionCaseShape shape = testing::attention_case_shapes()[0];
  std::vector<TestSequence> sequences;
  for (std::int32_t blocks = 1; blocks <= 17; ++blocks) {
    sequences.push_back({blocks * shape.block_tokens - 1, 1});
    sequences.push_back({(blocks - 1) * shape.block_tokens, 1});
  }
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    const IntegerCase c(shape, sequences, 690);
    SCOPED_TRACE(c.describe());
    ASSERT_TRUE(testing::bits_equal(c.expected(), c.run_on(backend, context),
                                    {static_cast<std::int64_t>(sequences.size()),
                                     shape.heads.num_index_heads, shape.heads.top_k_blocks}));
  });
}

// Fault A6: scores that turn zero at great length. One key differs from zero, in the first quarter.
TEST(IndexTopk, FindsAPlantedKeyInTheFirstQuarterOfALongContext) {
  AttentionCaseShape shape = testing::attention_case_shapes()[0];
  shape.index_dtype = shape.kv_dtype = CacheDType::kNvfp4;
  for (const std::int32_t context : {131072, 262144}) {
    const std::int32_t num_blocks = context / shape.block_tokens + 1;
    testing::RandomInputs random(static_cast<std::uint64_t>(context));
    SCOPED_TRACE(random.describe());
    const testing::TestBatch batch({{context, 5}}, shape.block_tokens, num_blocks, random);
    const CacheRowLayout layout(shape.row());
    const Buffer pool(layout.row_bytes() * num_blocks, "zeroed pool");
    const std::int32_t planted = context / 4 - 77;
    const CachePlane plane = layout.index_k(kLayer);
    const std::int64_t row_number =
        batch.view().sequences[0].block_table[planted / shape.block_tokens];
    std::byte* const row = pool.data() + row_number * layout.row_bytes();
    const int slot = planted % shape.block_tokens;
    const std::vector<float> key(static_cast<std::size_t>(plane.dim), 1.0F);
    encode_cache_vector(plane.dtype, key, plane.data(row, slot), plane.scales(row, slot),
                        kScalarCodecs);
    const std::vector<float> index_q(
        static_cast<std::size_t>(5 * shape.heads.num_index_heads * shape.heads.index_head_dim),
        1.0F);
    // Equal scores go to the lower block: 0 to 13, the planted one, the query's own.
    std::vector<std::int32_t> expected(16);
    std::iota(expected.begin(), expected.end(), 0);
    expected[14] = planted / shape.block_tokens;
    expected[15] = context / shape.block_tokens;
    testing::for_each_backend([&](const Backend& backend, const OpContext& context_of_backend) {
      const auto blocks =
          run(backend, context_of_backend, shape, batch.view(),
              {.pool = pool.data(), .layout = &layout, .mode = shape.mode}, index_q);
      for (std::size_t begin = 0; begin < blocks.size(); begin += 16) {
        EXPECT_TRUE(testing::bits_equal(expected, std::span(blocks).subspan(begin, 16), {16}));
      }
    });
  }
}

TEST(IndexTopk, NaNScoresCountAsMinusInfinity) {
  AttentionCaseShape shape = testing::attention_case_shapes()[1];
  ASSERT_EQ(shape.index_dtype, CacheDType::kF32);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    testing::RandomInputs random(695);
    const std::vector<TestSequence> sequences{{shape.block_tokens * 3 + 2, 1}};
    const testing::TestBatch batch(sequences, shape.block_tokens, 4, random);
    const testing::TestCache cache(shape.row(), 4, shape.mode);
    cache.fill(batch.view(), kLayer, random);
    const std::vector<float> index_q(
        static_cast<std::size_t>(shape.heads.num_index_heads * shape.heads.index_head_dim),
        std::numeric_limits<float>::quiet_NaN());
    const auto blocks = run(backend, context, shape, batch.view(), cache.view(), index_q);
    EXPECT_EQ(blocks, (std::vector<std::int32_t>{3, -1, -1, -1, 3, -1, -1, -1}));
  });
}

}  // namespace
}  // namespace winnow::ops
