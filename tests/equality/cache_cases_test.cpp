// Faults of the cache seen in comparable engines, each a test named for the fault.
#include <gtest/gtest.h>

#include "ops/testing/compare_bits.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

using ops::testing::bits_equal;
using ops::testing::RandomInputs;

constexpr DecoderOptions kNvfp4{.kv_dtype = CacheDType::kNvfp4,
                                .index_dtype = CacheDType::kNvfp4,
                                .dequant = DequantMode::kE4M3,
                                .max_num_batched_tokens = 2304,
                                .num_threads = 1};
constexpr CacheDType kAllDTypes[] = {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8,
                                     CacheDType::kNvfp4};

/// M3.1's head and block shape; two layers, one of them attending densely.
RandomCheckpoint small_m31() {
  RandomCheckpoint options = random_m31();
  options.layers = {{.is_sparse_attention = false, .is_moe = false},
                    {.is_sparse_attention = true, .is_moe = true}};
  options.top_k_blocks = 16;
  return options;
}

// Faults A2 and C1: bytes beyond the valid tokens of a partial block, of blocks nobody wrote and of
// their scales.
TEST(CacheCases, StaleAndInvalidBytesHaveNoInfluence) {
  const TestModel model(small_m31());
  for (const std::string& backend : {reference_backend(), best_backend()}) {
    SCOPED_TRACE(backend);
    const LoadedModel loaded = model.load(backend, kNvfp4);
    Decoder& decoder = *loaded.decoder;
    for (const std::int64_t length : {1, 3, 7, 127, 128, 129, 255, 257, 2047, 2049}) {
      RandomInputs random(static_cast<std::uint64_t>(length));
      SCOPED_TRACE(random.describe());
      const auto tokens = random_tokens(length, decoder.vocab_size(), random);
      std::vector<float> clean;
      const int runs = length < 300 ? 10 : 2;
      for (int run = 0; run <= runs; ++run) {
        allocate_pool(decoder, 20, run == 0 ? PoolState::kZeroed : PoolState::kPoisoned);
        TestSequence sequence(decoder, highest_rows_first(decoder, 18));
        // The last token on its own: prefill and decode both meet the partial block.
        std::vector<float> logits = sequence.append(std::span(tokens).first(tokens.size() - 1));
        const std::vector<float> last = sequence.append(std::span(tokens).last(1));
        logits.insert(logits.end(), last.begin(), last.end());
        if (run == 0) clean = logits;
        ASSERT_TRUE(bits_equal(clean, logits, {length, decoder.vocab_size()})) << "run " << run;
      }
    }
  }
}

// Fault A8: a batch as large as a step may be, of single tokens; empty rows after the last real
// one.
TEST(CacheCases, FullBatchOfSingleTokensAndEmptyRowsBehindIt) {
  constexpr std::int32_t kSequences = 24;
  const TestModel model{RandomCheckpoint{}};
  for (const std::string& backend : backend_names()) {
    SCOPED_TRACE(backend);
    const LoadedModel loaded =
        model.load(backend, {.max_num_batched_tokens = kSequences, .num_threads = 1});
    Decoder& decoder = *loaded.decoder;
    allocate_pool(decoder, 64, PoolState::kPoisoned);
    RandomInputs random(41);
    std::vector<std::vector<TokenId>> tokens;
    std::vector<TestSequence> sequences;
    std::vector<std::vector<float>> alone;
    for (std::int32_t s = 0; s < kSequences; ++s) {
      tokens.push_back(random_tokens(1 + s, decoder.vocab_size(), random));
      TestSequence expected(decoder, ascending_rows(2, 60));
      alone.push_back(expected.append_in_chunks(tokens.back(), kSequences));
      sequences.emplace_back(decoder, ascending_rows(2, 2 * s));
      sequences.back().append_in_chunks(std::span(tokens.back()).first(tokens.back().size() - 1),
                                        kSequences);
    }
    Batch batch;
    for (std::size_t s = 0; s < kSequences; ++s) {
      sequences[s].add_to(batch, std::span(tokens[s]).last(1));
    }
    TestSequence empty(decoder, {});
    for (int i = 0; i < 4; ++i) empty.add_to(batch, {});
    const std::vector<float> logits = run_batch(decoder, batch);
    const auto vocab = static_cast<std::size_t>(decoder.vocab_size());
    for (std::size_t s = 0; s < kSequences; ++s) {
      ASSERT_TRUE(bits_equal(std::span(alone[s]).last(vocab),
                             std::span(logits).subspan(s * vocab, vocab), {decoder.vocab_size()}))
          << "sequence " << s;
    }
  }
}

// A recorded step replayed for as many tokens and sequences, but other shares of them: launches are
// sized by the longest share too.
TEST(CacheCases, StepsOfEqualCountsButOtherShares) {
  constexpr std::int32_t kPrompt = 300;
  const TestModel model(small_m31());
  const LoadedModel loaded = model.load(best_backend(), kNvfp4);
  Decoder& decoder = *loaded.decoder;
  const auto vocab = static_cast<std::size_t>(decoder.vocab_size());
  RandomInputs random(43);
  SCOPED_TRACE(random.describe());
  const auto first = random_tokens(kPrompt + 16, decoder.vocab_size(), random);
  const auto second = random_tokens(kPrompt + 16, decoder.vocab_size(), random);
  const auto alone = [&](const std::vector<TokenId>& tokens, std::int32_t count) {
    allocate_pool(decoder, 8, PoolState::kPoisoned);
    TestSequence sequence(decoder, ascending_rows(4));
    sequence.append(std::span(tokens).first(kPrompt));
    return sequence.append(std::span(tokens).subspan(kPrompt, static_cast<std::size_t>(count)));
  };
  struct Shares {
    std::int32_t first, second;
  };
  // The first ones thrice: run, recorded, replayed.
  constexpr Shares kShares[] = {{4, 4}, {4, 4}, {4, 4},  {7, 1},  {1, 7}, {7, 1},
                                {2, 6}, {8, 8}, {1, 15}, {15, 1}, {4, 4}};
  std::vector<std::vector<float>> expected;
  for (const Shares& shares : kShares) {
    std::vector<float> logits = alone(first, shares.first);
    const std::vector<float> rest = alone(second, shares.second);
    logits.insert(logits.end(), rest.begin(), rest.end());
    expected.push_back(std::move(logits));
  }
  // One pool for all of them, since another one would drop what was recorded.
  allocate_pool(decoder, 8, PoolState::kPoisoned);
  TestSequence a(decoder, ascending_rows(4));
  TestSequence b(decoder, ascending_rows(4, 4));
  a.append(std::span(first).first(kPrompt));
  b.append(std::span(second).first(kPrompt));
  for (std::size_t i = 0; i < std::size(kShares); ++i) {
    const auto [tokens_a, tokens_b] = kShares[i];
    TestSequence again_a(decoder, a.block_table(), kPrompt);
    TestSequence again_b(decoder, b.block_table(), kPrompt);
    Batch batch;
    again_a.add_to(batch, std::span(first).subspan(kPrompt, static_cast<std::size_t>(tokens_a)));
    again_b.add_to(batch, std::span(second).subspan(kPrompt, static_cast<std::size_t>(tokens_b)));
    ASSERT_TRUE(bits_equal(expected[i], run_batch(decoder, batch),
                           {tokens_a + tokens_b, static_cast<std::int64_t>(vocab)}))
        << "shares " << tokens_a << " and " << tokens_b << ", step " << i;
  }
}

// Faults A7 and B2: the rest of a prompt after a hit in the prefix cache, in sparse and dense
// layers; the hit's blocks are shared, the new ones lie elsewhere.
TEST(CacheCases, ContinuationAfterAPrefixHitEqualsTheWholePrompt) {
  const TestModel model(small_m31());
  for (const CacheDType dtype : kAllDTypes) {
    for (const std::string& backend : {reference_backend(), best_backend()}) {
      SCOPED_TRACE(backend + " " + std::string(cache_dtype_name(dtype)));
      DecoderOptions options = kNvfp4;
      options.kv_dtype = options.index_dtype = dtype;
      const LoadedModel loaded = model.load(backend, options);
      Decoder& decoder = *loaded.decoder;
      allocate_pool(decoder, 64, PoolState::kPoisoned);
      RandomInputs random(51);
      const auto prompt = random_tokens(700, decoder.vocab_size(), random);
      TestSequence whole(decoder, ascending_rows(6));
      const std::vector<float> expected = whole.append(prompt);
      const auto vocab = static_cast<std::size_t>(decoder.vocab_size());
      for (const std::int32_t hit_blocks : {1, 4, 5}) {
        std::vector<BlockId> table = ascending_rows(hit_blocks);
        for (const BlockId id : ascending_rows(6 - hit_blocks, 20)) table.push_back(id);
        const std::int32_t hit = hit_blocks * 128;
        TestSequence rest(decoder, table, hit);
        ASSERT_TRUE(
            bits_equal(std::span(expected).subspan(static_cast<std::size_t>(hit) * vocab),
                       rest.append(std::span(prompt).subspan(static_cast<std::size_t>(hit))),
                       {700 - hit, decoder.vocab_size()}))
            << "after a hit of " << hit;
      }
    }
  }
}

// Fault B2: the same prompt again with one token more.
TEST(CacheCases, OneTokenAfterAFullHitInDenseLayers) {
  RandomCheckpoint checkpoint;
  checkpoint.layers = {{.is_sparse_attention = false, .is_moe = false},
                       {.is_sparse_attention = false, .is_moe = true}};
  const TestModel model(checkpoint);
  for (const std::string& backend : backend_names()) {
    SCOPED_TRACE(backend);
    const LoadedModel loaded =
        model.load(backend, {.max_num_batched_tokens = 128, .num_threads = 1});
    Decoder& decoder = *loaded.decoder;
    RandomInputs random(52);
    const auto prompt = random_tokens(65, decoder.vocab_size(), random);
    allocate_pool(decoder, 16, PoolState::kPoisoned);
    TestSequence fresh(decoder, ascending_rows(5));
    const std::vector<float> expected = fresh.append(prompt);
    allocate_pool(decoder, 16, PoolState::kPoisoned);
    TestSequence first(decoder, highest_rows_first(decoder, 5));
    first.append(std::span(prompt).first(64));
    TestSequence second(decoder, highest_rows_first(decoder, 5), 64);
    const auto vocab = static_cast<std::size_t>(decoder.vocab_size());
    ASSERT_TRUE(bits_equal(std::span(expected).last(vocab),
                           second.append(std::span(prompt).last(1)), {decoder.vocab_size()}));
  }
}

// Fault B4: a pool of one block, used by one request and then by a shorter one.
TEST(CacheCases, BlockZeroReusedByAShorterRequest) {
  const TestModel model{RandomCheckpoint{}};
  for (const CacheDType dtype : kAllDTypes) {
    for (const std::string& backend : backend_names()) {
      SCOPED_TRACE(backend + " " + std::string(cache_dtype_name(dtype)));
      const LoadedModel loaded = model.load(backend, {.kv_dtype = dtype,
                                                      .index_dtype = dtype,
                                                      .max_num_batched_tokens = 32,
                                                      .num_threads = 1});
      Decoder& decoder = *loaded.decoder;
      RandomInputs random(53);
      const auto x = random_tokens(16, decoder.vocab_size(), random);
      const auto y = random_tokens(9, decoder.vocab_size(), random);
      allocate_pool(decoder, 1, PoolState::kZeroed);
      const std::vector<float> expected = TestSequence(decoder, ascending_rows(1)).append(y);
      allocate_pool(decoder, 1, PoolState::kPoisoned);
      TestSequence(decoder, ascending_rows(1)).append(x);
      ASSERT_TRUE(bits_equal(expected, TestSequence(decoder, ascending_rows(1)).append(y),
                             {9, decoder.vocab_size()}));
    }
  }
}

// Fault B1, in part: a forked sequence takes K, V, scales and index keys along in one copy.
TEST(CacheCases, CopiedBlockContinuesAsTheOriginal) {
  const TestModel model{RandomCheckpoint{}};
  for (const CacheDType dtype : kAllDTypes) {
    const LoadedModel loaded = model.load(
        best_backend(),
        {.kv_dtype = dtype, .index_dtype = dtype, .max_num_batched_tokens = 128, .num_threads = 1});
    Decoder& decoder = *loaded.decoder;
    allocate_pool(decoder, 16, PoolState::kPoisoned);
    RandomInputs random(54);
    const auto prompt = random_tokens(100, decoder.vocab_size(), random);
    const auto next = random_tokens(40, decoder.vocab_size(), random);
    TestSequence original(decoder, ascending_rows(9));
    original.append(prompt);
    decoder.copy_block({6}, {12});  // 100 tokens end inside block 6
    std::vector<BlockId> table = ascending_rows(6);
    for (const std::int32_t row : {12, 13, 14}) table.push_back({row});
    TestSequence copy(decoder, table, 100);
    const std::vector<float> expected = original.append(next);
    ASSERT_TRUE(bits_equal(expected, copy.append(next), {40, decoder.vocab_size()}));
  }
}

// Fault B3: rows beyond 4 GiB, for the whole model.
TEST(CacheCases, HighestRowsOfAPoolAboveFourGigabytes) {
  const TestModel model(small_m31());
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kNvfp4}) {
    DecoderOptions options = kNvfp4;
    options.kv_dtype = options.index_dtype = dtype;
    const LoadedModel loaded = model.load(best_backend(), options);
    Decoder& decoder = *loaded.decoder;
    RandomInputs random(55);
    const auto prompt = random_tokens(300, decoder.vocab_size(), random);
    allocate_pool(decoder, 3, PoolState::kZeroed);
    const std::vector<float> expected = TestSequence(decoder, ascending_rows(3)).append(prompt);
    // Not touched but for three rows, so it costs address space only.
    decoder.allocate_pool(
        static_cast<std::int32_t>((std::int64_t{9} << 30) / decoder.cache_layout().row_bytes()));
    ASSERT_TRUE(bits_equal(expected,
                           TestSequence(decoder, highest_rows_first(decoder, 3)).append(prompt),
                           {300, decoder.vocab_size()}));
  }
}

}  // namespace
}  // namespace winnow::testing
