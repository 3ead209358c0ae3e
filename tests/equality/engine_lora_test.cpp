// Adapters through the engine, with a drafter and the prefix cache (fault G1): each request has the
// bits that it has alone and without drafts, and base requests those of an engine without adapters.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/testing/random_adapter.h"
#include "checkpoint/testing/temporary_folder.h"
#include "engine_workload.h"
#include "model/dspark_drafter.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kMaxPrompt = 100, kMaxTokens = 20, kDrafts = 5;

class EngineLora : public ::testing::TestWithParam<std::string> {
 protected:
  EngineLora() {
    const ModelConfig config = read_model_config(model_.folder());
    const DrafterConfig drafter_config = read_drafter_config(model_.folder(), config);
    DecoderOptions options{.max_num_batched_tokens = 128, .num_threads = 2};
    options.captured_layers = drafter_config.target_layers;
    options.drafter_cache = drafter_cache_shape(drafter_config, CacheDType::kFp8);
    target_ = model_.load(GetParam(), options);
    drafter_ = load_drafter(model_.folder(), config, decoder().shared_tables(), decoder().backend(),
                            kMaxPrompt + kMaxTokens + kDrafts);
    decoder().set_drafter(drafter_.drafter.get());
    for (const std::uint64_t seed : {61, 62}) {
      const auto folder = folder_.path() / std::to_string(seed);
      write_random_adapter(folder, model_.options(), {.rank = 6, .seed = seed});
      adapters_.push_back(decoder().load_adapter(folder, {.max_rank = 6}));
    }
  }

  Decoder& decoder() const { return *target_.decoder; }

  EngineOptions options(std::int32_t num_drafts) const {
    EngineOptions options;
    options.max_model_len = kMaxPrompt + kMaxTokens;
    options.max_num_seqs = 16;
    options.max_num_batched_tokens = 128;
    options.max_adapters = 2;
    options.stop_token_ids = {decoder().vocab_size() - 1};
    options.speculation.num_drafts = num_drafts;
    options.speculation.method = AcceptMethod::kCoupled;
    validate_options(options, decoder());
    return options;
  }

  Results run(const Workload& workload, std::int32_t num_drafts, int rounds = 1) const {
    allocate_pool(decoder(), 200, PoolState::kPoisoned);
    const EngineOptions with = options(num_drafts);
    EngineCore core(with, decoder(), nullptr);
    Results results;
    for (int round = 0; round < rounds; ++round) results = run_together(workload, core);
    if (num_drafts > 0) {
      EXPECT_GT(core.stats().accepted_tokens, 0);
    }
    if (rounds > 1) {
      EXPECT_GT(core.stats().prefix_hits, 0);
    }
    return results;
  }

  static RandomCheckpoint with_drafter() {
    RandomCheckpoint options;
    options.drafter = RandomDrafter{};
    return options;
  }

  TestModel model_{with_drafter()};
  TemporaryFolder folder_;
  LoadedModel target_;
  LoadedDrafter drafter_;
  std::vector<std::shared_ptr<const ModelAdapter>> adapters_;
};

// A device's fast kernels are their own reference.
INSTANTIATE_TEST_SUITE_P(, EngineLora,
                         ::testing::ValuesIn(std::set{reference_backend(), best_backend()}),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(EngineLora, EachRequestHasItsOwnBitsWithDraftsAndPrefixHits) {
  // The same requests three times, so that prompts are equal where adapters are not.
  const Workload base = mixed_workload(63, 4, kMaxPrompt, kMaxTokens, model_.options().vocab_size);
  Workload mixed;
  for (std::size_t i = 0; i < 3; ++i) {
    for (GenerationRequest request : base.requests) {
      if (i > 0) request.adapter = adapters_[i - 1];
      mixed.requests.push_back(std::move(request));
    }
  }
  Results expected = run(base, 0);
  for (const std::shared_ptr<const ModelAdapter>& adapter : adapters_) {
    Workload adapted = base;
    for (GenerationRequest& request : adapted.requests) request.adapter = adapter;
    const Results alone = run(adapted, 0);
    expected.insert(expected.end(), alone.begin(), alone.end());
  }
  expect_equal(expected, run(mixed, 0), "mixed");
  expect_equal(expected, run(mixed, kDrafts), "drafted");
  expect_equal(expected, run(mixed, kDrafts, 3), "drafted, from the prefix cache");
}

}  // namespace
}  // namespace winnow::testing
