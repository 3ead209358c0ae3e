#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/attention/attention.h"
#include "ops/testing/attention_shapes.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::AttentionCaseShape;
using testing::TestSequence;

constexpr int kLayer = 0;
constexpr std::int32_t kRows = 100;

/// Decode at several lengths, drafted tokens across a block's edge, and prefill with and without
/// a context before it.
const std::vector<TestSequence> kSequences = {{0, 1},    {127, 1},   {128, 2},   {2900, 1},
                                              {2170, 8}, {300, 150}, {0, 70},    {4, 0},
                                              {640, 1},  {1919, 3},  {2600, 40}, {3, 1}};

class FastAttentionCase {
 public:
  FastAttentionCase(const AttentionCaseShape& shape, std::uint64_t stream)
      : shape_(shape),
        random_(stream),
        batch_(kSequences, shape.block_tokens, kRows, random_),
        cache_(shape.row(), kRows, shape.mode) {
    cache_.fill(batch_.view(), kLayer, random_);
    q_ = random_.normals(num_tokens() * token_floats());
    if (casts_query(shape.kv_dtype, shape.mode)) testing::cast_to_e4m3(q_);
    for (std::int32_t t = 0; t < num_tokens(); ++t) {
      for (std::int32_t g = 0; g < shape.heads.num_index_heads; ++g) choose_blocks(t);
    }
  }

  std::string describe() const { return shape_.describe() + " " + random_.describe(); }
  std::int32_t num_tokens() const { return batch_.num_tokens(); }
  std::int64_t token_floats() const {
    return std::int64_t{shape_.heads.num_heads} * shape_.heads.head_dim;
  }

  std::vector<float> run(const Backend& backend, bool is_sparse, std::int32_t first,
                         std::int32_t count) const {
    testing::TestContext context;
    const testing::BatchPart part(batch_.view(), first, count);
    const std::int64_t list =
        std::int64_t{shape_.heads.num_index_heads} * shape_.heads.top_k_blocks;
    std::vector<float> out = testing::poisoned(count * token_floats());
    backend.attention(context.get(),
                      {.q = q_.data() + first * token_floats(),
                       .shape = shape_.heads,
                       .scale = 1.0F / std::sqrt(static_cast<float>(shape_.heads.head_dim)),
                       .layer = kLayer,
                       .batch = part.view(),
                       .cache = cache_.view(),
                       .blocks = is_sparse ? blocks_.data() + first * list : nullptr,
                       .out = out.data()});
    return out;
  }

 private:
  void choose_blocks(std::int32_t t) {
    const std::int32_t own = batch_.view().positions[t] / shape_.block_tokens;
    const auto top_k = static_cast<std::size_t>(shape_.heads.top_k_blocks);
    std::vector<std::int32_t> list = random_.permutation(own);
    list.resize(std::min(list.size(), top_k - 1));
    list.push_back(own);
    std::ranges::sort(list);
    list.resize(top_k, -1);
    blocks_.insert(blocks_.end(), list.begin(), list.end());
  }

  AttentionCaseShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestCache cache_;
  std::vector<float> q_;
  std::vector<std::int32_t> blocks_;
};

class CudaFastAttention : public ::testing::TestWithParam<AttentionCaseShape> {};

TEST_P(CudaFastAttention, IsNearTheReferenceAndATokenDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  const AttentionCaseShape& shape = GetParam();
  const FastAttentionCase c(shape, 1301);
  SCOPED_TRACE(c.describe());
  const std::int32_t tokens = c.num_tokens();
  for (const bool is_sparse : {true, false}) {
    const std::vector<float> whole = c.run(fast, is_sparse, 0, tokens);
    EXPECT_LT(testing::relative_error(c.run(exact, is_sparse, 0, tokens), whole), 6e-3);
    const auto expect_same = [&](std::int32_t first, std::int32_t count) {
      const std::vector<float> some = c.run(fast, is_sparse, first, count);
      const auto at = static_cast<std::size_t>(first * c.token_floats());
      return testing::bits_equal(std::span(whole).subspan(at, some.size()), some,
                                 {count, shape.heads.num_heads, shape.heads.head_dim});
    };
    // Decode, verification of drafts, and both in one step; the same of a prompt's tokens.
    for (const auto& [first, count] : {std::pair{0, 13}, {5, 8}, {2, 6}, {30, 16}, {41, 3}}) {
      ASSERT_TRUE(expect_same(first, count))
          << "sparse " << is_sparse << ", " << count << " tokens from " << first;
    }
    // Prompts cut in runs of 33, then many tokens on their own.
    for (std::int32_t first = 0; first < tokens; first += 33) {
      ASSERT_TRUE(expect_same(first, std::min(33, tokens - first)))
          << "sparse " << is_sparse << ", tokens from " << first;
    }
    for (std::int32_t t = 0; t < tokens; t += t < 15 ? 1 : 41) {
      ASSERT_TRUE(expect_same(t, 1)) << "sparse " << is_sparse << ", token " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, CudaFastAttention,
                         ::testing::ValuesIn(testing::fast_attention_shapes()),
                         [](const auto& test) { return test.param.cache_name(); });

}  // namespace
}  // namespace winnow::ops
