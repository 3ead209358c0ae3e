// Greedy verification by any method, and coupled verification at any temperature, give what plain
// decoding gives, token for token and with the same log-probabilities.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "engine/testing/toy_speculation.h"

namespace winnow {
namespace {

using testing::DraftKind;
using testing::ToyDrafter;
using testing::ToyFilter;
using testing::ToyModel;
using testing::ToyRun;

constexpr TokenId kVocab = 40;

/// A request with a random choice of everything that can change a token.
class RandomCase {
 public:
  RandomCase(std::uint64_t seed, bool is_greedy) : random_(seed) {
    params.temperature = is_greedy ? 0.0F : 0.2F + 0.1F * static_cast<float>(below(20));
    params.max_tokens = 1 + static_cast<std::int32_t>(below(24));
    params.min_tokens =
        one_in(2)
            ? 0
            : static_cast<std::int32_t>(below(static_cast<std::uint32_t>(params.max_tokens) + 1));
    if (one_in(2)) params.top_k = 1 + static_cast<std::int32_t>(below(50));
    if (one_in(3)) params.top_p = 0.05F * static_cast<float>(1 + below(20));
    if (one_in(3)) params.min_p = 0.02F * static_cast<float>(below(20));
    if (one_in(3)) params.repetition_penalty = 0.7F + 0.1F * static_cast<float>(below(10));
    if (one_in(3)) params.presence_penalty = -2.0F + 0.25F * static_cast<float>(below(17));
    if (one_in(3)) params.frequency_penalty = one_in(2) ? 2.0F : -2.0F;
    if (one_in(3)) params.logit_bias = {{token(), 3.0F}, {token(), -100.0F}};
    if (one_in(5)) {
      for (int i = 0; i < 12; ++i) params.allowed_token_ids.push_back(token());
    }
    if (one_in(3)) params.bad_words = {{token()}, {token(), token()}, {token(), token(), token()}};
    if (one_in(2)) params.stop_token_ids = {token(), token()};
    if (one_in(4)) params.logprobs = static_cast<std::int32_t>(below(4));
    if (one_in(4)) params.logprob_token_ids = {token()};
    params.processed_logprobs = one_in(2);
    target = {.seed = seed, .vocab_size = kVocab, .spread = 6.0F};
    if (one_in(4)) target.corrupt_one_in = 30;
    drafter.model = {.seed = seed + 1, .vocab_size = kVocab, .spread = 6.0F};
    drafter.agreement = 0.25F * static_cast<float>(below(5));  // 0: a stranger, 1: the target
    constexpr DraftKind kKinds[] = {DraftKind::kDense, DraftKind::kSparse, DraftKind::kOneHot,
                                    DraftKind::kPadded, DraftKind::kHostile};
    drafter.kind = kKinds[below(5)];
    for (std::uint32_t i = 0; i <= below(6); ++i) prompt.push_back(token());
    if (one_in(3)) {
      filter = std::make_unique<ToyFilter>(kVocab, below(3), one_in(2) ? -1 : token());
    }
  }

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(random_()) % bound; }
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  TokenId token() { return static_cast<TokenId>(below(kVocab)); }
  std::unique_ptr<TokenFilter> new_filter() const { return filter ? filter->clone() : nullptr; }

  SamplingParams params;
  ToyModel target;
  ToyDrafter drafter;
  std::vector<TokenId> prompt;
  std::unique_ptr<TokenFilter> filter;

 private:
  std::mt19937_64 random_;
};

bool equal(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token == b.token && a.logprob == b.logprob && a.rank == b.rank;
}

bool equal(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return equal(x, y); });
}

bool equal(const SampledToken& a, const SampledToken& b) {
  if (a.token != b.token || a.logprobs.has_value() != b.logprobs.has_value()) return false;
  return !a.logprobs ||
         (equal(a.logprobs->chosen, b.logprobs->chosen) &&
          equal(a.logprobs->top, b.logprobs->top) && equal(a.logprobs->listed, b.logprobs->listed));
}

struct Totals {
  std::int64_t num_tokens = 0, num_accepted = 0, num_steps = 0, num_errors = 0;
};

/// num_drafts -1: another number at each step.
void expect_same_as_plain(std::uint64_t seed, bool is_greedy, AcceptMethod method,
                          std::int32_t num_drafts, Totals& totals) {
  RandomCase c(seed, is_greedy);
  const TokenId eos[] = {kVocab - 1};
  const SampleRules rules(c.params, eos, seed * 3);
  ToyRun plain(c.target, c.drafter, rules, c.prompt, c.new_filter());
  while (!plain.is_done()) plain.plain_step();
  ToyRun drafted(c.target, c.drafter, rules, c.prompt, c.new_filter());
  while (!drafted.is_done()) {
    const auto length = num_drafts >= 0 ? num_drafts : static_cast<std::int32_t>(c.below(8));
    drafted.step(method, length);
    const Verified& verified = drafted.verified();
    ASSERT_LE(verified.num_accepted, verified.num_proposed);
    ASSERT_LE(verified.num_proposed, length);
    totals.num_accepted += verified.num_accepted;
    ++totals.num_steps;
  }
  ASSERT_EQ(drafted.status(), plain.status()) << "case " << seed;
  ASSERT_EQ(drafted.sampled().size(), plain.sampled().size()) << "case " << seed;
  for (std::size_t i = 0; i < plain.sampled().size(); ++i) {
    ASSERT_TRUE(equal(drafted.sampled()[i], plain.sampled()[i]))
        << "case " << seed << ", token " << i << ": " << drafted.sampled()[i].token << ", plainly "
        << plain.sampled()[i].token;
  }
  totals.num_tokens += std::ssize(plain.sampled());
  totals.num_errors += plain.status() != SampleStatus::kOk ? 1 : 0;
}

TEST(VerifyEquality, CoupledGivesWhatPlainSamplingGives) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < 4000 && !HasFatalFailure(); ++seed) {
    expect_same_as_plain(seed, false, AcceptMethod::kCoupled, -1, totals);
  }
  EXPECT_GT(totals.num_tokens, 20'000);
  EXPECT_GT(totals.num_errors, 100);                       // NaN rows, and nothing allowed
  EXPECT_GT(totals.num_accepted * 10, totals.num_tokens);  // drafts took part
}

TEST(VerifyEquality, GreedyByAnyMethodGivesWhatPlainDecodingGives) {
  for (const AcceptMethod method :
       {AcceptMethod::kStandard, AcceptMethod::kBlock, AcceptMethod::kCoupled}) {
    Totals totals;
    for (std::uint64_t seed = 10'000; seed < 12'000 && !HasFatalFailure(); ++seed) {
      expect_same_as_plain(seed, true, method, -1, totals);
    }
    EXPECT_GT(totals.num_accepted * 10, totals.num_tokens);
  }
}

// cases.md D3: one depth corrupts.
TEST(VerifyEquality, EveryDepthGivesTheSame) {
  for (std::int32_t depth = 0; depth <= 16; ++depth) {
    Totals totals;
    for (std::uint64_t seed = 0; seed < 100 && !HasFatalFailure(); ++seed) {
      expect_same_as_plain(seed, false, AcceptMethod::kCoupled, depth, totals);
      expect_same_as_plain(seed, true, AcceptMethod::kStandard, depth, totals);
      expect_same_as_plain(seed, true, AcceptMethod::kBlock, depth, totals);
    }
  }
}

// cases.md D4: penalties that count one token per step.
TEST(VerifyEquality, StrongFrequencyPenaltiesSeeEveryAcceptedToken) {
  for (const float penalty : {2.0F, -2.0F}) {
    SamplingParams params;
    params.temperature = 0;
    params.frequency_penalty = penalty;
    params.max_tokens = 200;
    const SampleRules rules(params, {}, 1);
    const ToyModel target{.seed = 5, .vocab_size = 8, .spread = 1.0F};
    const ToyDrafter drafter{.model = target, .agreement = 1.0F, .kind = DraftKind::kOneHot};
    const std::vector<TokenId> prompt = {1, 1, 1};
    ToyRun plain(target, drafter, rules, prompt, nullptr);
    while (!plain.is_done()) plain.plain_step();
    ToyRun drafted(target, drafter, rules, prompt, nullptr);
    while (!drafted.is_done()) drafted.step(AcceptMethod::kStandard, 7);
    EXPECT_TRUE(std::ranges::equal(drafted.output(), plain.output())) << penalty;
  }
}

TEST(VerifyEquality, WithoutDraftsEveryMethodIsPlainSampling) {
  for (const AcceptMethod method : {AcceptMethod::kStandard, AcceptMethod::kBlock}) {
    Totals totals;
    for (std::uint64_t seed = 0; seed < 200 && !HasFatalFailure(); ++seed) {
      expect_same_as_plain(seed, false, method, 0, totals);
    }
  }
}

}  // namespace
}  // namespace winnow
