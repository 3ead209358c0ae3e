#include "engine/sample/masks_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/sample/mask_worker.h"
#include "engine/testing/toy_speculation.h"

namespace winnow {
namespace {

constexpr std::size_t kVocabSize = 70;
constexpr std::size_t kNumWords = 3;
constexpr TokenId kEnd = 69;

struct Rules {
  SamplingParams params;
  SampleRules rules{params, std::vector<TokenId>{kEnd}, 1};
};

using Mask = std::vector<std::uint32_t>;

/// As process_row() takes it; empty: every token may come.
Mask mask_of(TokenFilter& filter, const MasksAhead& ahead) {
  if (const auto found = ahead.find()) return {found->begin(), found->end()};
  Mask mask(kNumWords);
  return filter.fill_mask(mask) ? mask : Mask();
}

TokenId any_allowed(const Mask& mask, std::mt19937& random) {
  for (;;) {
    const auto token = static_cast<TokenId>(random() % kVocabSize);
    const auto id = static_cast<std::size_t>(token);
    if (mask.empty() || (mask[id / 32] >> (id % 32) & 1U) != 0) return token;
  }
}

TEST(MasksAhead, AreThoseOfTheFilterWhereverItGoes) {
  const Rules rules;
  std::mt19937 random(20);
  std::atomic<bool> is_stopped{false};
  std::int64_t num_found = 0;
  for (std::uint32_t round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    winnow::testing::ToyFilter filter(kVocabSize, round, round % 3 == 0 ? TokenId{5} : TokenId{-1});
    MasksAhead ahead;
    std::vector<TokenId> walked;
    const auto check = [&] {
      Mask fresh(kNumWords);
      if (!filter.fill_mask(fresh)) fresh.clear();
      num_found += ahead.find() ? 1 : 0;
      EXPECT_EQ(mask_of(filter, ahead), fresh);
    };
    const auto accept = [&](TokenId token) {
      filter.accept(token);
      ahead.advance(token);
      walked.push_back(token);
    };
    for (int step = 0; step < 8; ++step) {
      std::vector<TokenId> drafts;
      for (auto i = random() % 6; i > 0; --i) {  // some are of no vocabulary
        drafts.push_back(static_cast<TokenId>(random() % (kVocabSize + 5)) - 2);
      }
      is_stopped = random() % 8 == 0;
      const std::size_t before = filter.num_accepted();
      ahead.fill(filter, drafts, rules.rules, kVocabSize, is_stopped);
      EXPECT_EQ(filter.num_accepted(), before);
      EXPECT_EQ(ahead.num_filled() == 0, is_stopped);
      check();
      // Along the drafts or beside them, and back, as verification does.
      for (int move = 0; move < 12; ++move) {
        const Mask mask = mask_of(filter, ahead);
        const auto at = walked.size();
        if (random() % 3 == 0 && !walked.empty()) {
          const auto num_tokens = random() % std::min<std::size_t>(walked.size(), 4) + 1;
          walked.resize(at - num_tokens);
          filter.rollback(static_cast<std::int32_t>(num_tokens));
          ahead.rewind(num_tokens);
        } else {
          TokenId token = any_allowed(mask, random);
          for (const TokenId draft : drafts) {
            if (random() % 2 == 0 && draft >= 0 && filter.may_follow(draft)) token = draft;
          }
          accept(token);
        }
        check();
      }
    }
  }
  EXPECT_GT(num_found, 1000);
}

TEST(MasksAhead, EndBeforeADraftThatCannotBeOutput) {
  const Rules rules;
  const std::atomic<bool> is_stopped{false};
  winnow::testing::ToyFilter filter(kVocabSize, 0, /*start_after=*/60);  // free until then
  MasksAhead ahead;
  const auto num_filled = [&](std::vector<TokenId> drafts) {
    ahead.fill(filter, drafts, rules.rules, kVocabSize, is_stopped);
    return ahead.num_filled();
  };
  EXPECT_EQ(num_filled({}), 1);
  EXPECT_EQ(num_filled({1, 2, 3}), 4);
  EXPECT_EQ(num_filled({1, kEnd, 3}), 2);
  EXPECT_EQ(num_filled({1, kVocabSize, 3}), 2);
  EXPECT_EQ(num_filled({-1}), 1);
  EXPECT_EQ(num_filled({60, 0, 1}), 2);  // 2 * 60 + 0 is a multiple of 3
}

TEST(MaskWorker, FillsInOrderAndHandsBackWhatItHasNotBegun) {
  const Rules rules;
  const std::vector<TokenId> drafts{1, 2};
  std::vector<SampleState> states(20);
  std::vector<MaskWorker::Task> tasks;
  for (SampleState& state : states) {
    state.filter = std::make_unique<winnow::testing::ToyFilter>(kVocabSize, 1, /*start_after=*/60);
    tasks.push_back({.state = &state, .drafts = drafts, .rules = &rules.rules});
  }
  MaskWorker worker(kVocabSize);
  EXPECT_EQ(worker.end(), 0);
  worker.begin({});
  EXPECT_EQ(worker.end(), 0);
  for (int round = 0; round < 200; ++round) {
    for (SampleState& state : states) state.masks_ahead = {};
    worker.begin(tasks);
    if (round % 2 == 0) std::this_thread::yield();
    const std::int64_t num_filled = worker.end();
    std::int64_t counted = 0;
    bool is_full = true;
    for (const SampleState& state : states) {
      if (!is_full) {
        EXPECT_EQ(state.masks_ahead.num_filled(), 0);
      }
      is_full = state.masks_ahead.num_filled() == 3;
      counted += state.masks_ahead.num_filled();
    }
    EXPECT_EQ(num_filled, counted);
  }
}

}  // namespace
}  // namespace winnow
