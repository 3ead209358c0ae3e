// An engine core over the fake runner, and what all tests of equality compare with: requests of
// every kind, each alone.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "engine/testing/fake_runner.h"
#include "engine_workload.h"

namespace winnow::testing {

inline constexpr std::int32_t kFakeVocab = 64;

/// Room for many sequences; the last two tokens of the vocabulary end a request.
EngineOptions fake_engine_options();

/// At its end nobody has read a slot that was not written for him, a rejected token's included; and
/// the drafter saw all of every context.
struct FakeEngine {
  explicit FakeEngine(const EngineOptions& options, const FakeRunnerOptions& fake = {});
  ~FakeEngine();

  FakeRunner runner;
  EngineCore core;
  bool is_adaptive;
};

class FakeEngineTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kMaxPrompt = 150;
  static constexpr std::int32_t kMaxTokens = 40;

  static const Workload& workload();
  /// Every request alone on a fresh engine, without drafts and prefix cache.
  static const Results& alone();
};

}  // namespace winnow::testing
