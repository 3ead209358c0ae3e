#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>

#include "formats/bulk_codecs.h"
#include "ops/qkv_insert/qkv_insert.h"
#include "ops/testing/attention_shapes.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/random_lora.h"
#include "ops/testing/random_matrix.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::AttentionCaseShape;

constexpr int kLayer = 0;
constexpr std::int32_t kRows = 12;
constexpr std::int64_t kHidden = 512;

struct Output {
  std::vector<float> q;
  std::vector<float> index_q;
  std::vector<float> cached;  // K, V and index keys of every token, as they read
  std::vector<std::byte> pool;
};

class FastQkvCase {
 public:
  FastQkvCase(const AttentionCaseShape& shape, bool is_sparse, std::uint64_t stream)
      : shape_(shape),
        random_(stream),
        batch_({{0, 1}, {127, 2}, {3, 0}, {60, 100}, {256, 1}, {0, 30}}, shape.block_tokens, kRows,
               random_),
        rope_(300, shape.heads.rotary_dim) {
    if (!is_sparse) shape_.heads.num_index_heads = 0;
    const AttentionShape& heads = shape_.heads;
    std::vector<std::int64_t> rows = {heads.num_heads, heads.num_kv_heads, heads.num_kv_heads};
    if (is_sparse) rows.insert(rows.end(), {heads.num_index_heads, 1});
    for (const std::int64_t n : rows) {
      matrices_.emplace_back(QuantScheme::kMxfp8, n * heads.head_dim, kHidden, random_);
    }
    std::int64_t width = 0;
    for (const std::int64_t n : rows) width += n * heads.head_dim;
    adapter_ = std::make_unique<testing::RandomLoraSite>(
        testing::random_lora_site(kHidden, width, random_));
    adapter_of_ = testing::adapters_of_rows(testing::Spread::kRuns, num_tokens(), 2, random_);
    h_ = random_.normals(num_tokens() * kHidden);
    for (std::vector<float>& norm : norms_) norm = random_.normals(heads.head_dim, 0.2F);
  }

  std::string describe() const { return shape_.describe() + " " + random_.describe(); }
  std::int32_t num_tokens() const { return batch_.num_tokens(); }

  bool has_adapter(std::int64_t token) const {
    return adapter_of_[static_cast<std::size_t>(token)] == 1;
  }

  /// All tokens in calls of `count`.
  Output run(const Backend& backend, std::int32_t count, bool has_adapters) const {
    testing::TestContext context;
    const testing::PackedLoraSite packed(backend, *adapter_);
    const LoraSite site = packed.view();
    const LoraSite* const adapters[] = {nullptr, &site};
    const testing::TestCache cache(shape_.row(), kRows, shape_.mode);
    std::vector<MatrixSource> sources;
    for (const testing::RandomMatrix& matrix : matrices_) sources.push_back(matrix.source());
    const auto w = backend.pack(sources);
    const AttentionShape& heads = shape_.heads;
    const bool is_sparse = heads.num_index_heads > 0;
    const std::int64_t q_floats = std::int64_t{heads.num_heads} * heads.head_dim;
    const std::int64_t index_floats = std::int64_t{heads.num_index_heads} * heads.index_head_dim;
    Output out{.q = testing::poisoned(num_tokens() * q_floats),
               .index_q = testing::poisoned(num_tokens() * index_floats),
               .cached = {},
               .pool = {}};
    for (std::int32_t first = 0; first < num_tokens(); first += count) {
      const testing::BatchPart part(batch_.view(), first, std::min(count, num_tokens() - first));
      const LoraRows<LoraSite> lora{.adapter_of = adapter_of_.data() + first, .adapters = adapters};
      backend.qkv_insert(
          context.get(),
          {.h = h_.data() + first * kHidden,
           .w = w.get(),
           .q_norm = norms_[0].data(),
           .k_norm = norms_[1].data(),
           .index_q_norm = is_sparse ? norms_[2].data() : nullptr,
           .index_k_norm = is_sparse ? norms_[3].data() : nullptr,
           .eps = 1e-6F,
           .rope = rope_.table(),
           .shape = heads,
           .layer = kLayer,
           .batch = part.view(),
           .cache = cache.view(),
           .q = out.q.data() + first * q_floats,
           .index_q = is_sparse ? out.index_q.data() + first * index_floats : nullptr,
           .lora = has_adapters ? &lora : nullptr});
    }
    out.pool.assign(cache.bytes().begin(), cache.bytes().end());
    read_back(cache, out.cached);
    return out;
  }

 private:
  void read_back(const testing::TestCache& cache, std::vector<float>& values) const {
    const BatchView batch = batch_.view();
    const CacheRowLayout& layout = cache.layout();
    std::vector<CachePlane> planes;
    for (int head = 0; head < shape_.heads.num_kv_heads; ++head) {
      planes.push_back(layout.k(kLayer, head));
      planes.push_back(layout.v(kLayer, head));
    }
    if (shape_.heads.num_index_heads > 0) planes.push_back(layout.index_k(kLayer));
    for (std::int32_t t = 0; t < batch.num_tokens; ++t) {
      const auto& slice = batch.sequences[static_cast<std::size_t>(batch.sequence_of[t])];
      const std::int32_t position = batch.positions[t];
      const std::byte* const row =
          cache.view().pool +
          slice.block_table[position / shape_.block_tokens] * layout.row_bytes();
      for (const CachePlane& plane : planes) {
        std::vector<float> vector(static_cast<std::size_t>(plane.dim));
        const int slot = position % shape_.block_tokens;
        decode_cache_vector(plane.dtype, shape_.mode, plane.data(row, slot),
                            plane.scales(row, slot), vector, kScalarCodecs);
        values.insert(values.end(), vector.begin(), vector.end());
      }
    }
  }

  AttentionCaseShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestRope rope_;
  std::vector<testing::RandomMatrix> matrices_;
  std::unique_ptr<testing::RandomLoraSite> adapter_;
  std::vector<std::int32_t> adapter_of_;  // 0 adds nothing
  std::vector<float> h_;
  std::array<std::vector<float>, 4> norms_;
};

/// A projection off by a hair rounds to a neighbouring code now and then: a share of the values of
/// about error / step, each off by a step.
double tolerance(CacheDType dtype) {
  if (dtype == CacheDType::kNvfp4) return 6e-2;
  return dtype == CacheDType::kFp8 ? 2e-2 : 1e-2;
}

/// As the reference is, and each token as in calls of other sizes; returns what the whole call
/// gave.
Output check_case(const FastQkvCase& c, const AttentionCaseShape& shape, const Backend& fast,
                  const Backend& exact, bool has_adapters) {
  const Output expected = c.run(exact, c.num_tokens(), has_adapters);
  Output whole = c.run(fast, c.num_tokens(), has_adapters);
  const double query_error = casts_query(shape.kv_dtype, shape.mode) ? 2e-2 : 5e-3;
  EXPECT_LT(testing::relative_error(expected.q, whole.q), query_error);
  EXPECT_LT(testing::relative_error(expected.index_q, whole.index_q), query_error);
  EXPECT_LT(testing::relative_error(expected.cached, whole.cached), tolerance(shape.kv_dtype));
  for (const std::int32_t count : {1, 7, 16, 50}) {
    SCOPED_TRACE(count);
    const Output parts = c.run(fast, count, has_adapters);
    const std::int64_t tokens = c.num_tokens();
    EXPECT_TRUE(testing::bits_equal(whole.q, parts.q, {tokens, std::ssize(whole.q) / tokens}));
    EXPECT_TRUE(testing::bits_equal(whole.index_q, parts.index_q,
                                    {tokens, std::ssize(whole.index_q) / tokens}));
    EXPECT_TRUE(
        testing::bits_equal(whole.pool, parts.pool, {kRows, std::ssize(whole.pool) / kRows}));
  }
  return whole;
}

TEST(CudaFastQkvInsert, IsNearTheReferenceAndATokenDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  std::uint64_t stream = 1500;
  for (const AttentionCaseShape& shape : testing::fast_attention_shapes()) {
    for (const bool is_sparse : {true, false}) {
      const FastQkvCase c(shape, is_sparse, ++stream);
      SCOPED_TRACE(c.describe());
      const Output base = check_case(c, shape, fast, exact, false);
      const Output adapted = check_case(c, shape, fast, exact, true);
      if (HasFailure()) return;
      const std::int64_t width = std::ssize(base.q) / c.num_tokens();
      for (std::int64_t t = 0; t < c.num_tokens(); ++t) {
        const auto row = [&](const Output& out) {
          return std::span(out.q).subspan(static_cast<std::size_t>(t * width),
                                          static_cast<std::size_t>(width));
        };
        ASSERT_EQ(bool{testing::bits_equal(row(base), row(adapted), {1, width})}, !c.has_adapter(t))
            << "token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace winnow::ops
