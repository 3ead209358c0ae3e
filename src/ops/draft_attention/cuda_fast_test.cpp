#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "formats/bulk_codecs.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::TestSequence;

constexpr int kLayer = 1;
constexpr std::int32_t kRows = 260;
constexpr AttentionShape kHeads{.num_heads = 32, .num_kv_heads = 2, .head_dim = 128};
constexpr std::int64_t kWidth =
    std::int64_t{kHeads.num_heads + 2 * kHeads.num_kv_heads} * kHeads.head_dim;

CacheRowShape row_shape(CacheDType dtype) {
  return {.num_layers = 1,
          .index_layers = {},
          .num_kv_heads = 1,
          .head_dim = 16,
          .index_head_dim = 16,
          .block_tokens = 128,
          .kv_dtype = CacheDType::kNvfp4,
          .index_dtype = CacheDType::kNvfp4,
          .drafter = CacheRowShape::Drafter{.num_layers = 2,
                                            .num_kv_heads = kHeads.num_kv_heads,
                                            .head_dim = kHeads.head_dim,
                                            .dtype = dtype}};
}

/// Blocks of several lengths; slots that no query sees are NaN.
class FastDraftCase {
 public:
  FastDraftCase(CacheDType dtype, std::int32_t window, std::uint64_t stream)
      : window_(window),
        random_(stream),
        batch_({{0, 7},
                {1, 1},
                {127, 7},
                {window - 1, 8},
                {window, 3},
                {window + 5, 0},
                {window + 300, 7},
                {2 * window + 125, 20},
                {640, 16}},
               128, kRows, random_),
        cache_(row_shape(dtype), kRows, DequantMode::kE4M3) {
    for (const SequenceSlice& slice : batch_.view().sequences) {
      if (slice.num_tokens == 0) continue;
      for (std::int32_t p = first_visible(slice.first_position, window); p < slice.first_position;
           ++p) {
        std::byte* const row =
            cache_.bytes().data() + slice.block_table[p / 128] * cache_.layout().row_bytes();
        for (int head = 0; head < kHeads.num_kv_heads; ++head) {
          cache_.store(cache_.layout().drafter_k(kLayer, head), row, p % 128, random_, 1.0F);
          cache_.store(cache_.layout().drafter_v(kLayer, head), row, p % 128, random_, 1.0F);
        }
      }
    }
    qkv_ = random_.normals(batch_.num_tokens() * kWidth);
  }

  std::string describe() const { return random_.describe(); }
  BatchView batch() const { return batch_.view(); }

  std::vector<float> run(const Backend& backend) const {
    return run(backend, batch_.view(), qkv_.data());
  }
  std::vector<float> run(const Backend& backend, const SequenceSlice& slice) const {
    const testing::BatchPart part(batch_.view(), slice.first_token, slice.num_tokens);
    return run(backend, part.view(), qkv_.data() + slice.first_token * kWidth);
  }

 private:
  std::vector<float> run(const Backend& backend, const BatchView& batch, const float* qkv) const {
    testing::TestContext context;
    std::vector<float> out =
        testing::poisoned(std::int64_t{batch.num_tokens} * kHeads.num_heads * kHeads.head_dim);
    backend.draft_attention(context.get(),
                            {.qkv = qkv,
                             .shape = kHeads,
                             .scale = 1.0F / std::sqrt(static_cast<float>(kHeads.head_dim)),
                             .layer = kLayer,
                             .window = window_,
                             .batch = batch,
                             .cache = cache_.view(),
                             .out = out.data()});
    return out;
  }

  std::int32_t window_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestCache cache_;
  std::vector<float> qkv_;
};

TEST(CudaFastDraftAttention, IsNearTheReferenceAndABlockDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  for (const std::int32_t window : {4096, 140, 3}) {
    const FastDraftCase c(CacheDType::kFp8, window, 5990);
    SCOPED_TRACE(fmt::format("window {}, {}", window, c.describe()));
    const std::vector<float> whole = c.run(fast);
    EXPECT_LT(testing::relative_error(c.run(exact), whole), 1e-3);
    for (const SequenceSlice& slice : c.batch().sequences) {
      const std::vector<float> alone = c.run(fast, slice);
      const auto at = static_cast<std::size_t>(std::int64_t{slice.first_token} * kHeads.num_heads *
                                               kHeads.head_dim);
      ASSERT_TRUE(testing::bits_equal(std::span(whole).subspan(at, alone.size()), alone,
                                      {slice.num_tokens, kHeads.num_heads, kHeads.head_dim}))
          << "context of " << slice.first_position;
    }
  }
}

// Caches without a kernel of their own.
TEST(CudaFastDraftAttention, OtherCachesTakeTheExactKernel) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const FastDraftCase c(CacheDType::kBF16, 140, 5991);
  SCOPED_TRACE(c.describe());
  const std::vector<float> fast = c.run(testing::make_hosted_cuda_backend(CudaKernels::kFast));
  EXPECT_TRUE(testing::bits_equal(c.run(testing::make_hosted_cuda_backend(CudaKernels::kExact)),
                                  fast, {c.batch().num_tokens, kHeads.num_heads, kHeads.head_dim}));
}

}  // namespace
}  // namespace winnow::ops
