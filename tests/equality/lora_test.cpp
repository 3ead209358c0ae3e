// Adapters (fault G1): merged weights give the same logits, base requests keep their bits whatever
// stands beside them, and an adapter's request has the same bits however it is batched and cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "base/error.h"
#include "checkpoint/testing/random_adapter.h"
#include "checkpoint/testing/temporary_folder.h"
#include "ops/testing/compare_bits.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

using ops::testing::bits_equal;
using ops::testing::RandomInputs;
using Experts = RandomAdapter::Experts;

constexpr std::int32_t kBlocks = 9;  // more than top-k
constexpr std::int32_t kPoolBlocks = 64;
constexpr AdapterLimits kLimits{.max_rank = 64};

DecoderOptions options_of(CacheDType cache, int num_threads = 1) {
  return {.kv_dtype = cache,
          .index_dtype = cache,
          .dequant = cache == CacheDType::kF32 ? DequantMode::kExact : DequantMode::kE4M3,
          .max_num_batched_tokens = 512,
          .num_threads = num_threads};
}

RandomCheckpoint mixed_layers() {
  RandomCheckpoint options;
  options.layers = {{.is_sparse_attention = false, .is_moe = false},
                    {.is_sparse_attention = true, .is_moe = true},
                    {.is_sparse_attention = true, .is_moe = true}};
  return options;
}

/// How far logits are from others, relative to the largest of those.
double distance(const std::vector<float>& logits, const std::vector<float>& expected) {
  double error = 0.0;
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(double{logits[i]} - double{expected[i]}));
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  return error / largest;
}

std::vector<float> run_prompt(Decoder& decoder, const std::vector<TokenId>& prompt,
                              const ModelAdapter* adapter) {
  allocate_pool(decoder, kPoolBlocks, PoolState::kPoisoned);
  TestSequence sequence(decoder, ascending_rows(kBlocks));
  sequence.set_adapter(adapter);
  return sequence.append(prompt);
}

// Sums are taken in another order, which moves fp32 logits by some 1e-6 of the largest; the
// tolerance is the golden tests'. Without the adapter they are at least a hundred times further.
// The fast kernels of a device round inputs to bf16, which moves them more: its exact ones answer.
TEST(LoraEquality, MergedWeightsGiveTheSameLogits) {
  const std::string backend = best_backend() == "cuda" ? "cuda-exact" : best_backend();
  struct Case {
    MatrixSpelling spelling;  // of the base; that which is merged is F32
    RandomAdapter adapter;
  };
  const Case cases[] = {
      {MatrixSpelling::kF32, {.rank = 4, .experts = Experts::kStacked, .seed = 21}},
      {MatrixSpelling::kF32, {.rank = 1, .experts = Experts::kOneByOne, .seed = 22}},
      {MatrixSpelling::kBF16, {.rank = 33, .alpha = 5, .experts = Experts::kStacked, .seed = 23}},
      {MatrixSpelling::kF32,
       {.rank = 7,
        .on_attention = false,
        .on_mlps = false,
        .experts = Experts::kOneAlone,
        .seed = 24}},
      {MatrixSpelling::kBF16,
       {.rank = 16, .on_mlps = false, .experts = Experts::kNone, .seed = 25}},
      {MatrixSpelling::kF32,
       {.rank = 64, .on_attention = false, .experts = Experts::kNone, .seed = 26}},
      {MatrixSpelling::kMxfp8, {.rank = 8, .experts = Experts::kOneByOne, .seed = 27}},
      {MatrixSpelling::kNvfp4Packed, {.rank = 8, .experts = Experts::kStacked, .seed = 28}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.adapter.seed);
    RandomCheckpoint options = mixed_layers();
    options.linears = options.experts = c.spelling;
    const TestModel model(options);
    const TemporaryFolder folder;
    const auto deltas = write_random_adapter(folder.path() / "adapter", options, c.adapter);
    write_merged_checkpoint(model.folder(), deltas, folder.path() / "merged");
    RandomInputs random(c.adapter.seed, 1);
    const auto prompt = random_tokens(kBlocks * 16 - 3, options.vocab_size, random);

    const LoadedModel merged =
        load_decoder(folder.path() / "merged", backend, options_of(CacheDType::kF32));
    const auto expected = run_prompt(*merged.decoder, prompt, nullptr);
    const LoadedModel base = model.load(backend, options_of(CacheDType::kF32));
    const auto adapter = base.decoder->load_adapter(folder.path() / "adapter", kLimits);
    EXPECT_EQ(adapter->rank(), c.adapter.rank);
    EXPECT_LT(distance(run_prompt(*base.decoder, prompt, adapter.get()), expected), 1e-4);
    EXPECT_GT(distance(run_prompt(*base.decoder, prompt, nullptr), expected), 1e-3);
  }
}

/// A quantised model with two adapters.
class Adapters {
 public:
  Adapters(const TestModel& model, const std::string& backend, int num_threads)
      : loaded_(model.load(backend, options_of(CacheDType::kNvfp4, num_threads))) {
    write_random_adapter(folder_.path() / "0", model.options(), {.rank = 5, .seed = 31});
    write_random_adapter(folder_.path() / "1", model.options(),
                         {.rank = 16, .on_mlps = false, .experts = Experts::kOneAlone, .seed = 32});
    for (const char* name : {"0", "1"}) {
      adapters_.push_back(decoder().load_adapter(folder_.path() / name, kLimits));
    }
    allocate_pool(decoder(), kPoolBlocks, PoolState::kPoisoned);
  }

  Decoder& decoder() { return *loaded_.decoder; }
  /// -1: none.
  const ModelAdapter* adapter(int index) const {
    return index < 0 ? nullptr : adapters_[static_cast<std::size_t>(index)].get();
  }

  TestSequence sequence(int adapter_index, std::int32_t first_block) {
    TestSequence sequence(decoder(), ascending_rows(kBlocks, first_block));
    sequence.set_adapter(adapter(adapter_index));
    return sequence;
  }

 private:
  TemporaryFolder folder_;
  LoadedModel loaded_;
  std::vector<std::shared_ptr<const ModelAdapter>> adapters_;
};

RandomCheckpoint quantised_model() {
  RandomCheckpoint options = mixed_layers();
  options.linears = MatrixSpelling::kMxfp8;
  options.experts = MatrixSpelling::kNvfp4Packed;
  options.kv_cache_quant_algo = "NVFP4";
  return options;
}

class LoraBackends : public ::testing::TestWithParam<std::string> {
 protected:
  LoraBackends() : model_(quantised_model()), random_(40) {
    prompt_ = random_tokens(100, model_.options().vocab_size, random_);
  }

  std::int64_t vocab() const { return model_.options().vocab_size; }

  TestModel model_;
  RandomInputs random_;
  std::vector<TokenId> prompt_;
};

TEST_P(LoraBackends, BaseAdapterBaseGivesTheBaseItsBits) {
  Adapters run(model_, GetParam(), 2);
  const LoadedModel plain = model_.load(reference_backend(), options_of(CacheDType::kNvfp4));
  const auto expected = run_prompt(*plain.decoder, prompt_, nullptr);
  const auto adapted = run.sequence(0, 0).append(prompt_);
  ASSERT_FALSE(bits_equal(expected, adapted, {100, vocab()}));
  for (const int adapter : {-1, 0, -1, 1, 0, -1}) {
    const auto logits = run.sequence(adapter, 0).append(prompt_);
    if (adapter < 0) {
      ASSERT_TRUE(bits_equal(expected, logits, {100, vocab()}));
    } else if (adapter == 0) {
      ASSERT_TRUE(bits_equal(adapted, logits, {100, vocab()}));
    }
  }
}

// Base and both adapters in one step, in chunks of their own lengths, and single tokens at the end.
TEST_P(LoraBackends, AMixedBatchGivesEachItsOwnBits) {
  constexpr int kOf[] = {-1, 0, 1, 0, -1};
  Adapters alone(model_, reference_backend(), 1);
  std::vector<std::vector<float>> expected;
  for (const int adapter : kOf) expected.push_back(alone.sequence(adapter, 0).append(prompt_));

  Adapters run(model_, GetParam(), 2);
  std::vector<TestSequence> sequences;
  for (std::size_t i = 0; i < std::size(kOf); ++i) {
    sequences.push_back(run.sequence(kOf[i], static_cast<std::int32_t>(i) * kBlocks));
  }
  for (std::int32_t step = 0; sequences.front().length() < std::ssize(prompt_); ++step) {
    Batch batch;
    std::vector<std::pair<std::size_t, std::int32_t>> parts;  // sequence, position
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::int32_t at = sequences[i].length();
      const std::int32_t left = static_cast<std::int32_t>(std::ssize(prompt_)) - at;
      const std::int32_t count = std::min(left, step < 4 ? 5 + 7 * static_cast<std::int32_t>(i)
                                                : i == 0 ? 9
                                                         : 1);
      for (std::int32_t t = 0; t < count; ++t) parts.emplace_back(i, at + t);
      sequences[i].add_to(batch, std::span(prompt_).subspan(static_cast<std::size_t>(at),
                                                            static_cast<std::size_t>(count)));
    }
    const auto logits = run_batch(run.decoder(), batch);
    for (std::size_t row = 0; row < parts.size(); ++row) {
      const auto width = static_cast<std::size_t>(vocab());
      const auto [sequence, position] = parts[row];
      ASSERT_TRUE(bits_equal(
          std::span(expected[sequence]).subspan(static_cast<std::size_t>(position) * width, width),
          std::span(logits).subspan(row * width, width), {1, vocab()}))
          << "sequence " << sequence << " position " << position;
    }
  }
}

// The last layer goes on with the rows of logits alone: they are to keep their adapters.
TEST_P(LoraBackends, RowsOfLogitsThatAreFewKeepTheirAdapters) {
  Adapters run(model_, GetParam(), 2);
  std::vector<std::vector<float>> expected;
  for (const int adapter : {-1, 0, 1}) expected.push_back(run.sequence(adapter, 0).append(prompt_));
  std::vector<TestSequence> sequences;
  for (const int adapter : {0, -1, 1}) {
    sequences.push_back(run.sequence(adapter, (adapter + 1) * kBlocks));
  }
  Batch batch;
  for (TestSequence& sequence : sequences) sequence.add_to(batch, prompt_);
  // Tokens 3 and 90 of the first sequence, none of the second, the last one of the third.
  batch.logit_rows = {3, 90, 299};
  const auto logits = run_batch(run.decoder(), batch);
  const auto row = [&](const std::vector<float>& of, std::int64_t index) {
    return std::span(of).subspan(static_cast<std::size_t>(index * vocab()),
                                 static_cast<std::size_t>(vocab()));
  };
  EXPECT_TRUE(bits_equal(row(expected[1], 3), row(logits, 0), {1, vocab()}));
  EXPECT_TRUE(bits_equal(row(expected[1], 90), row(logits, 1), {1, vocab()}));
  EXPECT_TRUE(bits_equal(row(expected[2], 99), row(logits, 2), {1, vocab()}));
}

// Steps of single tokens are recorded on a device and replayed (fault G2): each with its own
// adapter, also when that has taken the place of one that is gone.
TEST_P(LoraBackends, RepeatedStepsHaveTheAdapterThatTheyAreGiven) {
  Adapters run(model_, GetParam(), 2);
  const std::span prompt = std::span(prompt_).first(6);
  std::vector<std::vector<float>> expected;
  for (const int adapter : {-1, 0, 1}) expected.push_back(run.sequence(adapter, 0).append(prompt));
  for (const int adapter : {0, -1, 0, 1, -1, 0}) {
    ASSERT_TRUE(bits_equal(expected[static_cast<std::size_t>(adapter + 1)],
                           run.sequence(adapter, 0).append_in_chunks(prompt, 1), {6, vocab()}));
  }
  const TemporaryFolder folder;
  for (const std::uint64_t seed : {41U, 42U, 41U}) {
    write_random_adapter(folder.path() / std::to_string(seed), model_.options(),
                         {.rank = 5, .seed = seed});
    const auto adapter = run.decoder().load_adapter(folder.path() / std::to_string(seed), kLimits);
    const auto sequence = [&] {
      TestSequence fresh(run.decoder(), ascending_rows(kBlocks));
      fresh.set_adapter(adapter.get());
      return fresh;
    };
    const auto whole = sequence().append(prompt);
    ASSERT_FALSE(bits_equal(expected[1], whole, {6, vocab()}));
    ASSERT_TRUE(bits_equal(whole, sequence().append_in_chunks(prompt, 1), {6, vocab()}));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, LoraBackends, ::testing::ValuesIn(backend_names()),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(LoraEquality, TwoLoadsOfOneFolderAreAlikeAndOthersAreNot) {
  const TestModel model(quantised_model());
  const LoadedModel loaded = model.load(best_backend(), options_of(CacheDType::kNvfp4));
  const TemporaryFolder folder;
  write_random_adapter(folder.path() / "a", model.options(), {.seed = 51});
  write_random_adapter(folder.path() / "b", model.options(), {.seed = 52});
  write_random_adapter(folder.path() / "c", model.options(), {.alpha = 9.0, .seed = 51});
  const auto load = [&](const char* name) {
    return loaded.decoder->load_adapter(folder.path() / name, kLimits);
  };
  const auto a = load("a");
  EXPECT_EQ(a->fingerprint(), load("a")->fingerprint());
  EXPECT_NE(a->fingerprint(), load("b")->fingerprint());
  EXPECT_NE(a->fingerprint(), load("c")->fingerprint());
  EXPECT_NE(a->fingerprint(), 0U);
  EXPECT_GT(a->num_bytes(), 0);
}

// A server loads on another thread than the one that steps. An adapter's first steps of single
// tokens are the ones that a device records.
TEST(LoraEquality, LoadingDisturbsNoStep) {
  const TestModel model(quantised_model());
  Adapters run(model, best_backend(), 2);
  RandomInputs random(53);
  const auto prompt = random_tokens(100, model.options().vocab_size, random);
  const auto expected = run.sequence(0, 0).append(prompt);
  const std::span few = std::span(prompt).first(4);
  const TemporaryFolder folder;
  write_random_adapter(folder.path(), model.options(), {.rank = 7, .seed = 54});
  const auto run_few = [&](std::int64_t chunk_tokens) {
    const auto adapter = run.decoder().load_adapter(folder.path(), kLimits);
    TestSequence sequence(run.decoder(), ascending_rows(kBlocks));
    sequence.set_adapter(adapter.get());
    return sequence.append_in_chunks(few, chunk_tokens);
  };
  const auto expected_few = run_few(4);
  std::atomic<bool> is_done{false};
  std::thread loader([&] {
    while (!is_done.load()) {
      EXPECT_EQ(run.decoder().load_adapter(folder.path(), kLimits)->rank(), 7);
    }
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(bits_equal(expected, run.sequence(0, 0).append(prompt), {100, 96}));
    EXPECT_TRUE(bits_equal(expected_few, run_few(1), {4, 96}));
  }
  is_done.store(true);
  loader.join();
}

TEST(LoraEquality, AnAdapterOfAnotherRunnerCostsItsBatchAlone) {
  const TestModel model(quantised_model());
  const LoadedModel one = model.load(best_backend(), options_of(CacheDType::kNvfp4));
  const LoadedModel other = model.load(best_backend(), options_of(CacheDType::kNvfp4));
  const TemporaryFolder folder;
  write_random_adapter(folder.path(), model.options(), {});
  const auto adapter = other.decoder->load_adapter(folder.path(), kLimits);
  const std::vector<TokenId> prompt = {1, 2, 3};
  EXPECT_THROW(run_prompt(*one.decoder, prompt, adapter.get()), Error);
  EXPECT_EQ(run_prompt(*one.decoder, prompt, nullptr).size(), 3U * 96U);
}

}  // namespace
}  // namespace winnow::testing
