// Verification of one sequence's block on one thread, with the vocabulary and block of M3.1: eight
// rows of 200,064 logits. The floor is one pass over the rows: 6.4 MB.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "engine/speculate/verify.h"

namespace winnow {
namespace {

constexpr std::size_t kVocab = 200064;
constexpr std::size_t kDrafts = 7;

/// Rows and distributions that agree, so that every draft is tested.
struct Blocks {
  explicit Blocks(bool has_distributions) {
    params.max_tokens = 1000;
    std::mt19937_64 random(1);
    std::normal_distribution<float> normal(0.0F, 3.0F);
    std::vector<float> row(kVocab);
    for (float& logit : row) logit = normal(random);
    for (std::size_t i = 0; i <= kDrafts; ++i) {
      logits.insert(logits.end(), row.begin(), row.end());
      logits[i * kVocab + 1 + i] = 30.0F;
    }
    weights.resize(has_distributions ? kDrafts : 0);
    const SampleRules rules(params, {}, 1);
    for (std::size_t i = 0; i < kDrafts; ++i) {
      drafts.push_back(static_cast<TokenId>(1 + i));
      if (!has_distributions) continue;
      (void)fill_draft_weights(std::span(logits).subspan(i * kVocab, kVocab), {}, rules,
                               weights[i]);
      distributions.push_back(weights[i].view());
    }
  }

  SamplingParams params;
  std::vector<float> logits;
  std::vector<TokenId> drafts;
  std::vector<DraftWeights> weights;
  std::vector<DraftDistribution> distributions;
};

void verify_block_of_seven(benchmark::State& bench, AcceptMethod method, bool has_distributions,
                           float top_p) {
  Blocks blocks(has_distributions);
  blocks.params.top_p = top_p;
  const SampleRules rules(blocks.params, {}, 1);
  std::vector<TokenId> context = {0};
  SampleState state(rules, 0, context, nullptr);
  VerifyScratch scratch;
  Verified verified;
  std::int64_t accepted = 0;
  for (auto _ : bench) {
    verify(method,
           {.logits = blocks.logits,
            .drafts = blocks.drafts,
            .distributions = blocks.distributions,
            .rules = &rules},
           state, context, scratch, verified);
    accepted += verified.num_accepted;
  }
  bench.counters["accepted"] =
      static_cast<double>(accepted) / static_cast<double>(bench.iterations());
  bench.SetBytesProcessed(bench.iterations() *
                          static_cast<std::int64_t>(blocks.logits.size() * sizeof(float)));
}

BENCHMARK_CAPTURE(verify_block_of_seven, coupled, AcceptMethod::kCoupled, true, 1.0F);
BENCHMARK_CAPTURE(verify_block_of_seven, standard, AcceptMethod::kStandard, true, 1.0F);
BENCHMARK_CAPTURE(verify_block_of_seven, standard_one_hot, AcceptMethod::kStandard, false, 1.0F);
BENCHMARK_CAPTURE(verify_block_of_seven, standard_top_p, AcceptMethod::kStandard, true, 0.95F);
BENCHMARK_CAPTURE(verify_block_of_seven, block, AcceptMethod::kBlock, true, 1.0F);
BENCHMARK_CAPTURE(verify_block_of_seven, block_one_hot, AcceptMethod::kBlock, false, 1.0F);

}  // namespace
}  // namespace winnow
