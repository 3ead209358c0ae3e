// One request's logits, to the bit, against the reference backend running it alone in one step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/testing/compare_bits.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

using ops::testing::bits_equal;
using ops::testing::RandomInputs;

constexpr std::int32_t kBlocks = 17;  // more than top-k, so that selection matters
constexpr std::int32_t kPoolBlocks = 64;
constexpr std::int32_t kMaxTokens = 512;

RandomCheckpoint mixed_layers() {
  RandomCheckpoint options;
  options.layers = {{.is_sparse_attention = false, .is_moe = false},
                    {.is_sparse_attention = true, .is_moe = true},
                    {.is_sparse_attention = true, .is_moe = false},
                    {.is_sparse_attention = false, .is_moe = true}};
  return options;
}

/// A prompt that ends inside its 17th block, and the reference's logits for it.
class Equality {
 public:
  Equality(const RandomCheckpoint& checkpoint, const Numerics& numerics)
      : model_(checkpoint),
        numerics_(numerics),
        random_(checkpoint.seed + 1000),
        prompt_(
            random_tokens(kBlocks * checkpoint.block_tokens - 5, checkpoint.vocab_size, random_)) {
    const LoadedModel reference = model_.load(reference_backend(), numerics.options(1));
    allocate_pool(*reference.decoder, kPoolBlocks, PoolState::kZeroed);
    TestSequence sequence(*reference.decoder, ascending_rows(kBlocks));
    expected_ = sequence.append_in_chunks(prompt_, kMaxTokens);
  }

  std::string describe() const { return numerics_.name() + " " + random_.describe(); }

  ::testing::AssertionResult equals(const std::vector<float>& logits) const {
    return bits_equal(expected_, logits, {std::ssize(prompt_), model_.options().vocab_size});
  }

  ::testing::AssertionResult alone(const std::string& backend, int num_threads,
                                   std::int64_t chunk_tokens, bool highest_first) const {
    const LoadedModel loaded = model_.load(backend, numerics_.options(num_threads));
    allocate_pool(*loaded.decoder, kPoolBlocks, PoolState::kPoisoned);
    TestSequence sequence(*loaded.decoder, highest_first
                                               ? highest_rows_first(*loaded.decoder, kBlocks)
                                               : ascending_rows(kBlocks, 3));
    return equals(sequence.append_in_chunks(prompt_, chunk_tokens));
  }

  /// The prompt in chunks, each in a batch with others: chunks, single tokens, empty sequences.
  /// In chunks that ask for the logits of some rows only: often none, or the last.
  ::testing::AssertionResult some_rows(const std::string& backend, std::int64_t chunk_tokens) const;

  ::testing::AssertionResult in_a_batch(const std::string& backend,
                                        std::int64_t chunk_tokens) const;

 private:
  TestModel model_;
  Numerics numerics_;
  mutable RandomInputs random_;
  std::vector<TokenId> prompt_;
  std::vector<float> expected_;
};

::testing::AssertionResult Equality::in_a_batch(const std::string& backend,
                                                std::int64_t chunk_tokens) const {
  const LoadedModel loaded = model_.load(backend, numerics_.options());
  Decoder& decoder = *loaded.decoder;
  allocate_pool(decoder, kPoolBlocks, PoolState::kPoisoned);
  TestSequence ours(decoder, highest_rows_first(decoder, kBlocks));
  TestSequence chunked(decoder, ascending_rows(kBlocks));
  TestSequence decoding(decoder, ascending_rows(kBlocks, kBlocks));
  TestSequence empty(decoder, {});
  const std::int32_t vocab = decoder.vocab_size();
  std::vector<float> logits;
  std::span<const TokenId> rest(prompt_);
  while (!rest.empty()) {
    const auto count = std::min(rest.size(), static_cast<std::size_t>(chunk_tokens));
    const auto others = random_tokens(2 + random_.below(3), vocab, random_);
    const std::int32_t end = kBlocks * decoder.block_tokens();
    Batch batch;
    empty.add_to(batch, {});
    if (decoding.length() < end) decoding.add_to(batch, std::span(others).first(1));
    if (chunked.length() + 4 < end) chunked.add_to(batch, std::span(others).subspan(1));
    const std::size_t first_row = batch.logit_rows.size();
    ours.add_to(batch, rest.first(count));
    empty.add_to(batch, {});
    const std::vector<float> all = run_batch(decoder, batch);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first_row) * vocab;
    logits.insert(logits.end(), begin, begin + static_cast<std::ptrdiff_t>(count) * vocab);
    rest = rest.subspan(count);
  }
  return equals(logits);
}

::testing::AssertionResult Equality::some_rows(const std::string& backend,
                                               std::int64_t chunk_tokens) const {
  const LoadedModel loaded = model_.load(backend, numerics_.options());
  Decoder& decoder = *loaded.decoder;
  allocate_pool(decoder, kPoolBlocks, PoolState::kPoisoned);
  TestSequence ours(decoder, highest_rows_first(decoder, kBlocks));
  TestSequence other(decoder, ascending_rows(kBlocks));
  const auto vocab = static_cast<std::size_t>(decoder.vocab_size());
  std::span<const TokenId> rest(prompt_);
  while (!rest.empty()) {
    const auto count = std::min(rest.size(), static_cast<std::size_t>(chunk_tokens));
    const auto first = static_cast<std::size_t>(ours.length());
    Batch batch;
    if (other.length() < 200) other.add_to(batch, random_tokens(3, decoder.vocab_size(), random_));
    const auto begin = static_cast<std::int32_t>(batch.tokens.size());
    ours.add_to(batch, rest.first(count));
    const std::int64_t keep_one_in = 1 + random_.below(8);
    std::erase_if(batch.logit_rows, [&](std::int32_t) { return random_.below(keep_one_in) > 0; });
    const std::vector<float> logits = run_batch(decoder, batch);
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
      if (batch.logit_rows[i] < begin) continue;
      const std::size_t token = first + static_cast<std::size_t>(batch.logit_rows[i] - begin);
      const auto result =
          bits_equal(std::span(expected_).subspan(token * vocab, vocab),
                     std::span(logits).subspan(i * vocab, vocab), {decoder.vocab_size()});
      if (!result) return ::testing::AssertionFailure() << result.message() << ", token " << token;
    }
    rest = rest.subspan(count);
  }
  return ::testing::AssertionSuccess();
}

TEST(Equality, LogitsOfSomeRowsEqualThoseOfAll) {
  for (const bool is_last_sparse : {false, true}) {
    RandomCheckpoint checkpoint = mixed_layers();
    checkpoint.layers.back().is_sparse_attention = is_last_sparse;
    const Equality e(checkpoint, {CacheDType::kNvfp4, CacheDType::kNvfp4, DequantMode::kE4M3});
    SCOPED_TRACE(e.describe());
    for (const std::string& backend : backend_names()) {
      SCOPED_TRACE(backend);
      for (const std::int64_t chunk : {1, 7, 16, 100, 500}) {
        ASSERT_TRUE(e.some_rows(backend, chunk)) << "chunks of " << chunk;
      }
    }
  }
}

TEST(Equality, EveryCacheDtypeAndModeWholeChunkedAndInABatch) {
  for (const Numerics& numerics : all_numerics()) {
    const Equality e(mixed_layers(), numerics);
    SCOPED_TRACE(e.describe());
    for (const std::string& backend : backend_names()) {
      SCOPED_TRACE(backend);
      // Planes are read one at a time: mixed dtypes need only one kernel set.
      if (numerics.kv != numerics.index && backend != best_backend()) continue;
      ASSERT_TRUE(e.alone(backend, 1, kMaxTokens, true));
      ASSERT_TRUE(e.alone(backend, 1, 7, false));
      ASSERT_TRUE(e.in_a_batch(backend, 100));
    }
  }
}

TEST(Equality, EveryChunkLengthAndThreadCount) {
  for (const DequantMode mode : {DequantMode::kExact, DequantMode::kE4M3}) {
    const Equality e(mixed_layers(), {CacheDType::kNvfp4, CacheDType::kNvfp4, mode});
    SCOPED_TRACE(e.describe());
    for (const std::string& backend : backend_names()) {
      SCOPED_TRACE(backend);
      for (const std::int64_t chunk : {1, 7, 16, 100, 128, 512}) {
        ASSERT_TRUE(e.alone(backend, 1, chunk, true)) << "chunks of " << chunk;
        ASSERT_TRUE(e.in_a_batch(backend, chunk)) << "in a batch, chunks of " << chunk;
      }
      for (const int num_threads : {2, 3, 5}) {
        ASSERT_TRUE(e.alone(backend, num_threads, 100, false)) << num_threads << " threads";
      }
    }
  }
}

TEST(Equality, EveryWeightScheme) {
  struct Mix {
    MatrixSpelling experts;
    MatrixSpelling linears;
    MatrixSpelling embeddings;
  };
  for (const Mix& mix :
       {Mix{MatrixSpelling::kF32, MatrixSpelling::kF32, MatrixSpelling::kF32},
        Mix{MatrixSpelling::kMxfp8, MatrixSpelling::kMxfp8, MatrixSpelling::kBF16},
        Mix{MatrixSpelling::kNvfp4Packed, MatrixSpelling::kMxfp8, MatrixSpelling::kBF16},
        Mix{MatrixSpelling::kNvfp4ModelOpt, MatrixSpelling::kMxfp8PlainScale,
            MatrixSpelling::kBF16},
        Mix{MatrixSpelling::kNvfp4Packed, MatrixSpelling::kNvfp4Packed, MatrixSpelling::kF32}}) {
    RandomCheckpoint checkpoint = mixed_layers();
    checkpoint.experts = mix.experts;
    checkpoint.linears = mix.linears;
    checkpoint.embeddings = mix.embeddings;
    const Equality e(checkpoint, {CacheDType::kBF16, CacheDType::kBF16, DequantMode::kExact});
    SCOPED_TRACE(e.describe());
    for (const std::string& backend : backend_names()) {
      SCOPED_TRACE(backend);
      ASSERT_TRUE(e.alone(backend, 1, kMaxTokens, true));
      ASSERT_TRUE(e.alone(backend, 1, 7, false));
      ASSERT_TRUE(e.in_a_batch(backend, 100));
    }
  }
}

TEST(Equality, M31HeadShape) {
  RandomCheckpoint checkpoint = random_m31();
  checkpoint.layers = {{.is_sparse_attention = true, .is_moe = true}};
  const Equality e(checkpoint, {CacheDType::kNvfp4, CacheDType::kNvfp4, DequantMode::kE4M3});
  // 17 blocks of 128: more than kMaxTokens, so in chunks throughout.
  SCOPED_TRACE(e.describe());
  for (const std::string& backend : backend_names()) {
    SCOPED_TRACE(backend);
    ASSERT_TRUE(e.alone(backend, 1, 300, true));
    if (backend != best_backend()) continue;
    ASSERT_TRUE(e.alone(backend, 1, 128, false));
    ASSERT_TRUE(e.in_a_batch(backend, 300));
  }
}

// Fault C4: activation constants that one path does not pass on.
TEST(Equality, UnusualSwigluConstantsChangeTheOutputAlikeOnEveryBackend) {
  constexpr Numerics kNumerics{CacheDType::kBF16, CacheDType::kBF16, DequantMode::kExact};
  RandomCheckpoint unusual = mixed_layers();
  unusual.swiglu_alpha = 1.1;
  unusual.swiglu_limit = 0.5;
  const Equality usual(mixed_layers(), kNumerics);
  const Equality e(unusual, kNumerics);
  for (const std::string& backend : backend_names()) {
    SCOPED_TRACE(backend);
    ASSERT_TRUE(e.alone(backend, 1, kMaxTokens, true));
  }
  const TestModel model(unusual);
  const LoadedModel loaded = model.load(reference_backend(), kNumerics.options());
  allocate_pool(*loaded.decoder, kPoolBlocks, PoolState::kZeroed);
  RandomInputs random(mixed_layers().seed + 1000);
  TestSequence sequence(*loaded.decoder, ascending_rows(kBlocks));
  EXPECT_FALSE(usual.equals(sequence.append(
      random_tokens(kBlocks * unusual.block_tokens - 5, unusual.vocab_size, random))));
}

}  // namespace
}  // namespace winnow::testing
