// The equality list through the real decoder: random tiny checkpoints with every cache dtype, and
// the bundled model. Every pool but the reference's starts as NaN in every format.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine_workload.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kMaxBatchedTokens = 512;

EngineOptions engine_options(const Decoder& decoder) {
  EngineOptions options;
  options.max_model_len = 4096;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = kMaxBatchedTokens;
  options.stop_token_ids = {decoder.vocab_size() - 1};
  return options;
}

/// The workload under every condition, against each request alone on a zeroed pool.
class DecoderConditions {
 public:
  /// `needed_blocks`: of the largest request by itself.
  DecoderConditions(Decoder& decoder, Workload workload, std::int32_t needed_blocks)
      : decoder_(decoder), workload_(std::move(workload)), needed_blocks_(needed_blocks) {
    EngineOptions options = engine_options(decoder_);
    options.enable_prefix_caching = false;
    std::unique_ptr<EngineCore> core;
    alone_ = run_alone(workload_, [&]() -> EngineCore& {
      core.reset();
      allocate_pool(decoder_, needed_blocks_, PoolState::kZeroed);
      core = std::make_unique<EngineCore>(options, decoder_, nullptr);
      return *core;
    });
    for (const auto& result : alone_) EXPECT_EQ(result->check(), "");
  }

  void run(const std::string& what, const EngineOptions& options, std::int32_t num_blocks,
           int rounds = 1) {
    allocate_pool(decoder_, num_blocks, PoolState::kPoisoned);
    EngineCore core(options, decoder_, nullptr);
    for (int round = 0; round < rounds; ++round) {
      expect_equal(alone_, run_together(workload_, core), what);
    }
    stats_ = core.stats();
  }

  void run_all() {
    const std::int32_t plenty =
        needed_blocks_ * static_cast<std::int32_t>(workload_.requests.size()) * 4;
    EngineOptions options = engine_options(decoder_);
    run("in a batch, then from the prefix cache", options, plenty, 2);
    EXPECT_GT(stats_.prefix_hits, 0);
    for (const std::int32_t budget : {17, 100}) {
      options.max_num_batched_tokens = budget;
      run(fmt::format("chunks of {}", budget), options, plenty);
    }
    run("after preemption", options, needed_blocks_ + 2);
    EXPECT_GT(stats_.num_preemptions, 0);
    options.max_num_seqs = 2;
    run("after eviction", options, needed_blocks_ * 2 + 1, 2);
    options.policy = SchedulingPolicy::kPriority;
    run("with priorities", options, needed_blocks_ + 4);
  }

 private:
  Decoder& decoder_;
  Workload workload_;
  std::int32_t needed_blocks_;
  Results alone_;
  EngineStats stats_;
};

class EngineDecoder : public ::testing::TestWithParam<Numerics> {};

TEST_P(EngineDecoder, SameBitsUnderEveryCondition) {
  // Blocks of 16 and top-4: selection is live from 64 tokens.
  const TestModel model{RandomCheckpoint{}};
  const LoadedModel loaded = model.load(best_backend(), GetParam().options(2));
  constexpr std::int32_t kMaxPrompt = 170, kMaxTokens = 24;
  DecoderConditions conditions(
      *loaded.decoder, mixed_workload(31, 8, kMaxPrompt, kMaxTokens, model.options().vocab_size),
      (kMaxPrompt + kMaxTokens + 15) / 16);
  conditions.run_all();
}

INSTANTIATE_TEST_SUITE_P(CacheDTypes, EngineDecoder, ::testing::ValuesIn(all_numerics()),
                         [](const auto& param_info) { return param_info.param.name(); });

TEST(EngineDecoderBackends, SameBitsOnEachAndOnAnyNumberOfThreads) {
  const TestModel model{RandomCheckpoint{}};
  const Numerics numerics{CacheDType::kNvfp4, CacheDType::kNvfp4, DequantMode::kE4M3};
  const Workload workload = mixed_workload(32, 8, 150, 20, model.options().vocab_size);
  Results expected;
  for (const std::string& backend : backend_names()) {
    for (const int num_threads : {1, 2, 3}) {
      const LoadedModel loaded = model.load(backend, numerics.options(num_threads));
      allocate_pool(*loaded.decoder, 200, PoolState::kPoisoned);
      EngineOptions options = engine_options(*loaded.decoder);
      EngineCore core(options, *loaded.decoder, nullptr);
      const Results results = run_together(workload, core);
      if (expected.empty()) expected = results;
      expect_equal(expected, results, fmt::format("{} with {} threads", backend, num_threads));
    }
  }
}

// The published layout at small size: NVFP4 experts, MXFP8 linears, head_dim 128, blocks of 128.
// More than 16 blocks of context (cases.md F1: anything shorter selects every block).
TEST(EngineDecoderM31, SameBitsUnderEveryCondition) {
  RandomCheckpoint options = random_m31();
  options.layers.resize(std::min<std::size_t>(options.layers.size(), 2));
  const TestModel model{options};
  const Numerics numerics{CacheDType::kNvfp4, CacheDType::kNvfp4, DequantMode::kE4M3};
  const LoadedModel loaded = model.load(best_backend(), numerics.options(2));
  Workload workload = mixed_workload(33, 3, 2300, 8, options.vocab_size);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int32_t length = 2300 - 300 * static_cast<std::int32_t>(i);
    workload.requests[i].prompt = make_prompt(i, length, 0, options.vocab_size - 4);
  }
  DecoderConditions conditions(*loaded.decoder, std::move(workload), 19);
  conditions.run_all();
}

TEST(EngineDecoderTiny, SameBitsUnderEveryCondition) {
  const std::filesystem::path folder =
      std::filesystem::path(WINNOW_SOURCE_DIR) / "models" / "winnow-tiny";
  if (!std::filesystem::exists(folder / "config.json")) GTEST_SKIP() << "no bundled model yet";
  const LoadedModel loaded = load_decoder(
      folder, best_backend(), {.max_num_batched_tokens = kMaxBatchedTokens, .num_threads = 2});
  constexpr std::int32_t kMaxPrompt = 900, kMaxTokens = 16;
  const std::int32_t block_tokens = loaded.decoder->block_tokens();
  DecoderConditions conditions(
      *loaded.decoder, mixed_workload(34, 4, kMaxPrompt, kMaxTokens, loaded.decoder->vocab_size()),
      (kMaxPrompt + kMaxTokens + block_tokens - 1) / block_tokens);
  conditions.run_all();
}

}  // namespace
}  // namespace winnow::testing
