#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "formats/bulk_codecs.h"
#include "ops/index_topk/index_topk.h"
#include "ops/testing/attention_shapes.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::AttentionCaseShape;
using testing::TestSequence;

constexpr int kLayer = 0;
constexpr std::int32_t kRows = 180;

const std::vector<TestSequence> kSequences = {{0, 1},    {127, 1},  {128, 2},  {16 * 128 - 1, 3},
                                              {3000, 8}, {0, 70},   {9, 0},    {9000, 1},
                                              {2500, 1}, {300, 90}, {4444, 40}};

class FastIndexCase {
 public:
  FastIndexCase(const AttentionCaseShape& shape, std::uint64_t stream)
      : shape_(shape),
        random_(stream),
        batch_(kSequences, shape.block_tokens, kRows, random_),
        cache_(shape.row(), kRows, shape.mode) {
    cache_.fill(batch_.view(), kLayer, random_);
    index_q_ = random_.normals(std::int64_t{num_tokens()} * shape.heads.num_index_heads *
                               shape.heads.index_head_dim);
    if (casts_query(shape.index_dtype, shape.mode)) testing::cast_to_e4m3(index_q_);
  }

  std::string describe() const { return shape_.describe() + " " + random_.describe(); }
  std::int32_t num_tokens() const { return batch_.num_tokens(); }
  std::int64_t token_blocks() const {
    return std::int64_t{shape_.heads.num_index_heads} * shape_.heads.top_k_blocks;
  }

  std::vector<std::int32_t> run(const Backend& backend, std::int32_t first,
                                std::int32_t count) const {
    testing::TestContext context;
    const testing::BatchPart part(batch_.view(), first, count);
    std::vector<std::int32_t> blocks(static_cast<std::size_t>(count * token_blocks()), -77);
    backend.index_topk(
        context.get(),
        {.index_q = index_q_.data() + std::int64_t{first} * shape_.heads.num_index_heads *
                                          shape_.heads.index_head_dim,
         .shape = shape_.heads,
         .layer = kLayer,
         .batch = part.view(),
         .cache = cache_.view(),
         .blocks = blocks.data()});
    return blocks;
  }

  /// The largest score of a block in doubles.
  double score(std::int32_t token, std::int32_t head, std::int32_t block) const {
    const BatchView batch = batch_.view();
    const auto& slice = batch.sequences[static_cast<std::size_t>(batch.sequence_of[token])];
    const CachePlane plane = cache_.layout().index_k(kLayer);
    const std::byte* const row =
        cache_.view().pool + slice.block_table[block] * cache_.layout().row_bytes();
    const float* const q =
        index_q_.data() + (std::int64_t{token} * shape_.heads.num_index_heads + head) * plane.dim;
    std::vector<float> key(static_cast<std::size_t>(plane.dim));
    double best = -std::numeric_limits<double>::infinity();
    const std::int32_t begin = block * shape_.block_tokens;
    for (std::int32_t t = 0; t < shape_.block_tokens && begin + t <= batch.positions[token]; ++t) {
      decode_cache_vector(plane.dtype, shape_.mode, plane.data(row, t), plane.scales(row, t), key,
                          kScalarCodecs);
      double sum = 0.0;
      for (std::size_t d = 0; d < key.size(); ++d) sum += double{q[d]} * key[d];
      best = std::max(best, sum);
    }
    return best;
  }

  /// Where two selections of one list differ, what was taken must be about as good as what was
  /// left: scores are sums of 128 products of rounded queries.
  void expect_equal_or_close(std::span<const std::int32_t> expected,
                             std::span<const std::int32_t> actual, std::int32_t token,
                             std::int32_t head) const {
    std::vector<std::int32_t> lost;
    std::vector<std::int32_t> won;
    std::ranges::set_difference(expected, actual, std::back_inserter(lost));
    std::ranges::set_difference(actual, expected, std::back_inserter(won));
    ASSERT_EQ(lost.size(), won.size()) << "token " << token << " head " << head;
    for (const std::int32_t a : lost) {
      for (const std::int32_t b : won) {
        const double difference = score(token, head, a) - score(token, head, b);
        ASSERT_LT(std::abs(difference), 0.2)
            << "token " << token << " head " << head << ": block " << b << " instead of " << a;
      }
    }
  }

 private:
  AttentionCaseShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestCache cache_;
  std::vector<float> index_q_;
};

class CudaFastIndexTopk : public ::testing::TestWithParam<AttentionCaseShape> {};

TEST_P(CudaFastIndexTopk, ChoosesAsTheReferenceAndATokenDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  const AttentionCaseShape& shape = GetParam();
  const FastIndexCase c(shape, 1401);
  SCOPED_TRACE(c.describe());
  const std::int32_t tokens = c.num_tokens();
  const auto reference = c.run(exact, 0, tokens);
  const auto whole = c.run(fast, 0, tokens);
  const auto top_k = static_cast<std::size_t>(shape.heads.top_k_blocks);
  std::size_t num_equal = 0;
  for (std::size_t list = 0; list < whole.size() / top_k; ++list) {
    auto expected = std::span(reference).subspan(list * top_k, top_k);
    auto actual = std::span(whole).subspan(list * top_k, top_k);
    if (std::ranges::equal(expected, actual)) {
      ++num_equal;
      continue;
    }
    // Ascending, then -1: both cut to what they chose.
    const auto chosen = [](std::span<const std::int32_t> blocks) {
      return blocks.first(static_cast<std::size_t>(std::ranges::find(blocks, -1) - blocks.begin()));
    };
    ASSERT_TRUE(std::ranges::is_sorted(chosen(actual)));
    const auto heads = static_cast<std::size_t>(shape.heads.num_index_heads);
    c.expect_equal_or_close(chosen(expected), chosen(actual),
                            static_cast<std::int32_t>(list / heads),
                            static_cast<std::int32_t>(list % heads));
  }
  EXPECT_GE(num_equal * 10, whole.size() / top_k * 9);  // near ties are rare
  const auto expect_same = [&](std::int32_t first, std::int32_t count) {
    const auto some = c.run(fast, first, count);
    return testing::bits_equal(
        std::span(whole).subspan(static_cast<std::size_t>(first * c.token_blocks()), some.size()),
        some, {count, shape.heads.num_index_heads, shape.heads.top_k_blocks});
  };
  // Decode, verification of drafts, and both in one step; the same of a prompt's tokens.
  for (const auto& [first, count] : {std::pair{0, 15}, {7, 8}, {2, 5}, {30, 16}, {33, 2}}) {
    ASSERT_TRUE(expect_same(first, count)) << count << " tokens from " << first;
  }
  for (std::int32_t first = 0; first < tokens; first += 37) {
    ASSERT_TRUE(expect_same(first, std::min(37, tokens - first))) << "tokens from " << first;
  }
  for (std::int32_t t = 0; t < tokens; t += t < 17 ? 1 : 31) {
    ASSERT_TRUE(expect_same(t, 1)) << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, CudaFastIndexTopk,
                         ::testing::ValuesIn(testing::fast_attention_shapes()),
                         [](const auto& test) { return test.param.cache_name(); });

}  // namespace
}  // namespace winnow::ops
