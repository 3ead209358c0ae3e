// The decoder with its drafter behind the engine: the same bits as without, while the drafter's
// context comes from whole prompts, chunks, the prefix cache and verified drafts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "engine_workload.h"
#include "model/dspark_drafter.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

constexpr std::int32_t kMaxPrompt = 120, kMaxTokens = 24, kDrafts = 7;

RandomCheckpoint with_drafter(DrafterKind kind) {
  RandomCheckpoint options;
  options.drafter = RandomDrafter{};
  if (kind == DrafterKind::kQwen3) {
    options.drafter = {.kind = kind, .linears = MatrixSpelling::kBF16};
  }
  return options;
}

struct Tested {
  std::string backend;
  DrafterKind kind = DrafterKind::kMinimax;
};

std::vector<Tested> all_tested() {
  std::vector<Tested> all;
  for (const std::string& name : backend_names()) {
    for (const DrafterKind kind : {DrafterKind::kMinimax, DrafterKind::kQwen3}) {
      all.push_back({name, kind});
    }
  }
  return all;
}

/// A target with its drafter on one backend.
class DecoderSpeculationModel {
 public:
  DecoderSpeculationModel(const TestModel& model, const std::string& backend) {
    const ModelConfig config = read_model_config(model.folder());
    const DrafterConfig drafter_config = read_drafter_config(model.folder(), config);
    DecoderOptions options{.max_num_batched_tokens = 256, .num_threads = 2};
    options.captured_layers = drafter_config.target_layers;
    options.drafter_cache = drafter_cache_shape(drafter_config, CacheDType::kFp8);
    target_ = model.load(backend, options);
    drafter_ = load_drafter(model.folder(), config, decoder().shared_tables(), decoder().backend(),
                            kMaxPrompt + kMaxTokens + kDrafts);
    decoder().set_drafter(drafter_.drafter.get());
  }

  Decoder& decoder() const { return *target_.decoder; }

 private:
  LoadedModel target_;
  LoadedDrafter drafter_;
};

class DecoderSpeculation : public ::testing::TestWithParam<Tested> {
 protected:
  Decoder& decoder() { return tested_.decoder(); }

  EngineOptions options(std::int32_t num_drafts, bool is_greedy_draft = true) {
    EngineOptions options;
    options.max_model_len = kMaxPrompt + kMaxTokens;
    options.max_num_seqs = 16;
    options.max_num_batched_tokens = 256;
    options.stop_token_ids = {decoder().vocab_size() - 1};
    options.speculation.num_drafts = num_drafts;
    options.speculation.method = AcceptMethod::kCoupled;
    options.speculation.is_greedy_draft = is_greedy_draft;
    validate_options(options, decoder());
    return options;
  }

  TestModel model_{with_drafter(GetParam().kind)};
  DecoderSpeculationModel tested_{model_, GetParam().backend};
};

INSTANTIATE_TEST_SUITE_P(, DecoderSpeculation, ::testing::ValuesIn(all_tested()),
                         [](const auto& tested) {
                           std::string name = tested.param.backend;
                           std::ranges::replace(name, '-', '_');
                           return name + (tested.param.kind == DrafterKind::kQwen3 ? "_qwen3" : "");
                         });

TEST_P(DecoderSpeculation, EqualsPlainDecoding) {
  const Workload workload =
      mixed_workload(41, 8, kMaxPrompt, kMaxTokens, model_.options().vocab_size);
  Results plain;
  {
    allocate_pool(decoder(), 200, PoolState::kPoisoned);
    const EngineOptions without = options(0);
    EngineCore core(without, decoder(), nullptr);
    plain = run_together(workload, core);
  }
  for (const std::int32_t num_drafts : {1, 4, kDrafts}) {
    for (const std::int32_t num_blocks : {200, 12}) {
      allocate_pool(decoder(), num_blocks, PoolState::kPoisoned);
      EngineOptions with = options(num_drafts, /*is_greedy_draft=*/num_drafts == 4);
      with.max_num_batched_tokens = num_blocks == 12 ? 50 : 256;
      EngineCore core(with, decoder(), nullptr);
      for (int round = 0; round < 2; ++round) {  // the second from the prefix cache
        expect_equal(plain, run_together(workload, core),
                     fmt::format("{} drafts, {} blocks", num_drafts, num_blocks));
      }
      EXPECT_GT(core.stats().draft_tokens, core.stats().accepted_tokens);
      EXPECT_GT(core.stats().accepted_tokens, 0);
    }
  }
}

// Lengths chosen by acceptance, the drafter's confidence and times that are measured on this
// decoder before the first request, which must find nothing of that in its way.
TEST_P(DecoderSpeculation, EqualsPlainDecodingWithLengthsThatAdapt) {
  const Workload workload =
      mixed_workload(43, 8, kMaxPrompt, kMaxTokens, model_.options().vocab_size);
  allocate_pool(decoder(), 200, PoolState::kPoisoned);
  const EngineOptions without = options(0);
  EngineCore plain(without, decoder(), nullptr);
  const Results expected = run_together(workload, plain);
  const StepCosts cheap_rows{.bytes_per_second = 1e9, .fixed_seconds = 1e-3, .row_seconds = 1e-7};
  for (const std::optional<StepCosts>& costs : {std::optional<StepCosts>(), {cheap_rows}}) {
    allocate_pool(decoder(), 200, PoolState::kPoisoned);
    EngineOptions with = options(kDrafts, /*is_greedy_draft=*/false);
    with.speculation.is_adaptive = true;
    with.speculation.costs = costs;
    EngineCore core(with, decoder(), nullptr);
    core.prepare();
    for (int round = 0; round < 2; ++round) {
      expect_equal(expected, run_together(workload, core), "adaptive");
    }
    if (costs) {
      EXPECT_GT(core.stats().accepted_tokens, 0);
    }
  }
}

// Where tokens are drawn beside the logits, drafts and their verification never see a row: the same
// drafts are proposed and accepted as by the reference, which draws them itself.
TEST_P(DecoderSpeculation, ProposesAndAcceptsWhatTheReferenceDoes) {
  if (GetParam().backend == "cuda") GTEST_SKIP() << "bits of its own";
  const DecoderSpeculationModel reference(model_, reference_backend());
  const Workload workload =
      mixed_workload(43, 8, kMaxPrompt, kMaxTokens, model_.options().vocab_size);
  for (const bool is_greedy_draft : {true, false}) {
    EngineStats stats[2];
    Decoder* const decoders[] = {&reference.decoder(), &decoder()};
    for (int i = 0; i < 2; ++i) {
      allocate_pool(*decoders[i], 200, PoolState::kPoisoned);
      const EngineOptions with = options(kDrafts, is_greedy_draft);
      EngineCore core(with, *decoders[i], nullptr);
      run_together(workload, core);
      stats[i] = core.stats();
    }
    EXPECT_GT(stats[0].accepted_tokens, 0);
    EXPECT_EQ(stats[0].num_drafts, stats[1].num_drafts);
    EXPECT_EQ(stats[0].draft_tokens, stats[1].draft_tokens);
    EXPECT_EQ(stats[0].accepted_tokens, stats[1].accepted_tokens);
  }
}

// Context in the cache makes no difference to what is drafted, however it came there: the same
// request is accepted as often after a prefix hit.
TEST_P(DecoderSpeculation, APrefixHitIsDraftedForAsWell) {
  Workload one;
  one.requests.resize(1);
  one.requests[0].prompt = make_prompt(9, 100, 0, model_.options().vocab_size - 4);
  one.requests[0].sampling.max_tokens = kMaxTokens;
  one.requests[0].sampling.ignore_eos = true;
  one.requests[0].sampling.seed = 1;
  allocate_pool(decoder(), 40, PoolState::kPoisoned);
  const EngineOptions with = options(kDrafts, /*is_greedy_draft=*/false);
  EngineCore core(with, decoder(), nullptr);
  const Results first = run_together(one, core);
  const EngineStats before = core.stats();
  EXPECT_GT(before.accepted_tokens, 0);
  expect_equal(first, run_together(one, core), "after a hit");
  const EngineStats after = core.stats();
  EXPECT_GT(after.prefix_hits, before.prefix_hits);
  EXPECT_EQ(after.draft_tokens, 2 * before.draft_tokens);
  EXPECT_EQ(after.accepted_tokens, 2 * before.accepted_tokens);
}

}  // namespace
}  // namespace winnow::testing
