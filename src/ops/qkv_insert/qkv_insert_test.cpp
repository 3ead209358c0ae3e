#include "ops/qkv_insert/qkv_insert.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/testing/attention_shapes.h"
#include "ops/testing/backends.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/random_lora.h"
#include "ops/testing/random_matrix.h"
#include "ops/testing/test_cache.h"

namespace winnow::ops {
namespace {

using testing::AttentionCaseShape;

/// Single tokens, chunks that start inside a block and end on its edge, an empty sequence, and more
/// tokens than one tile.
std::vector<testing::TestSequence> mixed_sequences(std::int32_t block_tokens) {
  return {
      {0, 1}, {5, 0}, {block_tokens - 1, 2}, {3, block_tokens - 3}, {0, 70}, {2 * block_tokens, 1}};
}

struct Output {
  std::vector<float> q;
  std::vector<float> index_q;
  std::vector<std::byte> pool;
};

class QkvCase {
 public:
  QkvCase(const AttentionCaseShape& shape, bool is_sparse, std::uint64_t stream)
      : shape_(shape),
        random_(stream),
        batch_(mixed_sequences(shape.block_tokens), shape.block_tokens, kRows, random_),
        rope_(4 * shape.block_tokens + 70, shape.heads.rotary_dim) {
    if (!is_sparse) shape_.heads.num_index_heads = 0;
    const AttentionShape& heads = shape_.heads;
    add(heads.num_heads * heads.head_dim);
    add(heads.num_kv_heads * heads.head_dim);
    add(heads.num_kv_heads * heads.head_dim);
    if (is_sparse) {
      add(heads.num_index_heads * heads.index_head_dim);
      add(heads.index_head_dim);
    }
    h_ = random_.normals(batch_.num_tokens() * kHidden);
    std::int64_t rows = 0;
    for (const testing::RandomMatrix& matrix : matrices_) rows += matrix.source().rows;
    lora_.push_back(testing::random_lora_site(kHidden, rows, random_));
    lora_.push_back(testing::random_lora_site(kHidden, rows, random_));
    adapter_of_ =
        testing::adapters_of_rows(testing::Spread::kRuns, batch_.num_tokens(), 3, random_);
    for (std::vector<float>& norm : norms_) norm = random_.normals(heads.head_dim, 0.2F);
  }

  std::string describe() const { return shape_.describe() + " " + random_.describe(); }
  const AttentionShape& heads() const { return shape_.heads; }
  std::int64_t num_tokens() const { return batch_.num_tokens(); }
  const testing::TestBatch& batch() const { return batch_; }

  Output run(const Backend& backend, const OpContext& context, bool has_adapters = false) const {
    std::vector<testing::PackedLoraSite> packed_lora;
    for (const testing::RandomLoraSite& site : lora_) packed_lora.emplace_back(backend, site);
    const LoraSite sites[] = {packed_lora[0].view(), packed_lora[1].view()};
    const LoraSite* const adapters[] = {&sites[0], nullptr, &sites[1]};
    const LoraRows<LoraSite> lora{.adapter_of = adapter_of_.data(), .adapters = adapters};
    const testing::TestCache cache(shape_.row(), kRows, shape_.mode);
    std::vector<MatrixSource> sources;
    for (const testing::RandomMatrix& matrix : matrices_) sources.push_back(matrix.source());
    const auto w = backend.pack(sources);
    const AttentionShape& heads = shape_.heads;
    const bool is_sparse = heads.num_index_heads > 0;
    Output out{
        .q = testing::poisoned(num_tokens() * heads.num_heads * heads.head_dim),
        .index_q = testing::poisoned(num_tokens() * heads.num_index_heads * heads.index_head_dim),
        .pool = {}};
    backend.qkv_insert(context, {.h = h_.data(),
                                 .w = w.get(),
                                 .q_norm = norms_[0].data(),
                                 .k_norm = norms_[1].data(),
                                 .index_q_norm = is_sparse ? norms_[2].data() : nullptr,
                                 .index_k_norm = is_sparse ? norms_[3].data() : nullptr,
                                 .eps = 1e-6F,
                                 .rope = rope_.table(),
                                 .shape = heads,
                                 .layer = 1,
                                 .batch = batch_.view(),
                                 .cache = cache.view(),
                                 .q = out.q.data(),
                                 .index_q = is_sparse ? out.index_q.data() : nullptr,
                                 .lora = has_adapters ? &lora : nullptr});
    out.pool.assign(cache.bytes().begin(), cache.bytes().end());
    return out;
  }

  /// Head `head` of the stack [q; k; v; index_q; index_k] for one token, in doubles.
  std::vector<double> formula(std::int64_t token, std::int64_t head) const;

  static constexpr std::int32_t kRows = 24;

 private:
  static constexpr std::int64_t kHidden = 64;

  void add(std::int64_t rows) {
    constexpr QuantScheme kSchemes[] = {QuantScheme::kMxfp8, QuantScheme::kBF16, QuantScheme::kF32};
    matrices_.emplace_back(kSchemes[matrices_.size() % 3], rows, kHidden, random_);
  }

  AttentionCaseShape shape_;
  testing::RandomInputs random_;
  testing::TestBatch batch_;
  testing::TestRope rope_;
  std::vector<testing::RandomMatrix> matrices_;
  std::vector<testing::RandomLoraSite> lora_;
  std::vector<std::int32_t> adapter_of_;
  std::vector<float> h_;
  std::array<std::vector<float>, 4> norms_;
};

std::vector<double> QkvCase::formula(std::int64_t token, std::int64_t head) const {
  const AttentionShape& shape = shape_.heads;
  std::size_t part = 0;
  std::int64_t first = head * shape.head_dim;
  while (first >= matrices_[part].source().rows) first -= matrices_[part++].source().rows;
  std::vector<double> x(static_cast<std::size_t>(shape.head_dim));
  double squares = 0.0;
  for (std::size_t d = 0; d < x.size(); ++d) {
    for (std::int64_t k = 0; k < kHidden; ++k) {
      x[d] += h_[static_cast<std::size_t>(token * kHidden + k)] *
              matrices_[part].value(first + static_cast<std::int64_t>(d), k);
    }
    squares += x[d] * x[d];
  }
  if (part == 2) return x;  // V
  const std::vector<float>& norm = norms_[part < 2 ? part : part - 1];
  const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  for (std::size_t d = 0; d < x.size(); ++d) x[d] *= inverse * (1.0 + double{norm[d]});
  const auto half = static_cast<std::size_t>(shape.rotary_dim / 2);
  const auto row = static_cast<std::size_t>(batch_.view().positions[token]) * half;
  for (std::size_t j = 0; j < half; ++j) {
    const double a = x[j];
    const double b = x[j + half];
    x[j] = a * rope_.cos[row + j] - b * rope_.sin[row + j];
    x[j + half] = b * rope_.cos[row + j] + a * rope_.sin[row + j];
  }
  return x;
}

TEST(QkvInsert, EveryBackendEqualsTheReferenceInQueriesAndEveryByteOfThePool) {
  testing::TestContext reference(1);
  testing::for_each_backend([&](const Backend& backend, const OpContext& context) {
    std::uint64_t stream = 400;
    for (const AttentionCaseShape& shape : testing::attention_case_shapes()) {
      for (const bool is_sparse : {false, true}) {
        const QkvCase c(shape, is_sparse, ++stream);
        SCOPED_TRACE(c.describe());
        for (const bool has_adapters : {false, true}) {
          const Output expected = c.run(make_scalar_backend(), reference.get(), has_adapters);
          const Output actual = c.run(backend, context, has_adapters);
          const AttentionShape& heads = c.heads();
          ASSERT_TRUE(testing::bits_equal(expected.q, actual.q,
                                          {c.num_tokens(), heads.num_heads, heads.head_dim}));
          ASSERT_TRUE(
              testing::bits_equal(expected.index_q, actual.index_q,
                                  {c.num_tokens(), heads.num_index_heads, heads.index_head_dim}));
          ASSERT_TRUE(
              testing::bits_equal(expected.pool, actual.pool,
                                  {QkvCase::kRows, std::ssize(expected.pool) / QkvCase::kRows}));
        }
      }
    }
  });
}

TEST(QkvInsert, ReferenceIsNearTheFormula) {
  const AttentionCaseShape shape = testing::attention_case_shapes()[1];
  ASSERT_EQ(shape.kv_dtype, CacheDType::kF32);
  const QkvCase c(shape, true, 470);
  SCOPED_TRACE(c.describe());
  testing::TestContext context;
  const Output out = c.run(make_scalar_backend(), context.get());
  const AttentionShape& heads = c.heads();
  const CacheRowLayout layout(shape.row());
  const BatchView batch = c.batch().view();
  for (std::int64_t t = 0; t < c.num_tokens(); ++t) {
    const auto expect = [&](std::int64_t head, const float* actual) {
      const std::vector<double> expected = c.formula(t, head);
      for (std::size_t d = 0; d < expected.size(); ++d) {
        ASSERT_NEAR(actual[d], expected[d], 1e-5) << "token " << t << " head " << head << " " << d;
      }
    };
    const auto& sequence = batch.sequences[static_cast<std::size_t>(batch.sequence_of[t])];
    const std::int32_t position = batch.positions[t];
    const std::byte* const row =
        out.pool.data() + sequence.block_table[position / shape.block_tokens] * layout.row_bytes();
    const auto stored = [&](const CachePlane& plane) {
      return reinterpret_cast<const float*>(plane.data(row, position % shape.block_tokens));
    };
    std::int64_t head = 0;
    for (int n = 0; n < heads.num_heads; ++n) {
      expect(head++, out.q.data() + (t * heads.num_heads + n) * heads.head_dim);
    }
    for (int n = 0; n < heads.num_kv_heads; ++n) expect(head++, stored(layout.k(1, n)));
    for (int n = 0; n < heads.num_kv_heads; ++n) expect(head++, stored(layout.v(1, n)));
    for (int n = 0; n < heads.num_index_heads; ++n) {
      expect(head++, out.index_q.data() + (t * heads.num_index_heads + n) * heads.index_head_dim);
    }
    expect(head, stored(layout.index_k(1)));
  }
}

}  // namespace
}  // namespace winnow::ops
