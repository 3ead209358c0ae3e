#include "engine/sampling_params.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "base/error.h"

namespace winnow {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The param of the error, or "" when the parameters pass.
std::string refused(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  try {
    params.validate(100, 20);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.param();
  }
  return "";
}

TEST(SamplingParams, DefaultsPass) {
  EXPECT_EQ(refused([](SamplingParams&) {}), "");
}

// cases.md I2: one-sided comparisons would let these through.
TEST(SamplingParams, RefusesNumbersThatAreNone) {
  for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    EXPECT_EQ(refused([&](SamplingParams& p) { p.temperature = bad; }), "temperature");
    EXPECT_EQ(refused([&](SamplingParams& p) { p.top_p = bad; }), "top_p");
    EXPECT_EQ(refused([&](SamplingParams& p) { p.min_p = bad; }), "min_p");
    EXPECT_EQ(refused([&](SamplingParams& p) { p.repetition_penalty = bad; }),
              "repetition_penalty");
    EXPECT_EQ(refused([&](SamplingParams& p) { p.presence_penalty = bad; }), "presence_penalty");
    EXPECT_EQ(refused([&](SamplingParams& p) { p.frequency_penalty = bad; }), "frequency_penalty");
    EXPECT_EQ(refused([&](SamplingParams& p) { p.logit_bias = {{1, bad}}; }), "logit_bias");
  }
}

TEST(SamplingParams, RefusesWhatIsOutOfRangeAndNamesTheField) {
  const auto expect = [](const char* param, const std::function<void(SamplingParams&)>& change) {
    EXPECT_EQ(refused(change), param);
  };
  expect("temperature", [](SamplingParams& p) { p.temperature = -0.1F; });
  expect("top_p", [](SamplingParams& p) { p.top_p = 0.0F; });
  expect("top_p", [](SamplingParams& p) { p.top_p = 1.01F; });
  expect("top_k", [](SamplingParams& p) { p.top_k = -2; });
  expect("min_p", [](SamplingParams& p) { p.min_p = -0.1F; });
  expect("min_p", [](SamplingParams& p) { p.min_p = 1.1F; });
  expect("repetition_penalty", [](SamplingParams& p) { p.repetition_penalty = 0.0F; });
  expect("presence_penalty", [](SamplingParams& p) { p.presence_penalty = 2.1F; });
  expect("frequency_penalty", [](SamplingParams& p) { p.frequency_penalty = -2.1F; });
  expect("logit_bias", [](SamplingParams& p) { p.logit_bias = {{100, 1.0F}}; });
  expect("logit_bias", [](SamplingParams& p) { p.logit_bias = {{-1, 1.0F}}; });
  expect("allowed_token_ids", [](SamplingParams& p) { p.allowed_token_ids = {5, 100}; });
  expect("bad_words", [](SamplingParams& p) { p.bad_words = {{1}, {}}; });
  expect("bad_words", [](SamplingParams& p) { p.bad_words = {{1, 100}}; });
  expect("n", [](SamplingParams& p) { p.n = 0; });
  expect("n", [](SamplingParams& p) { p.n = 129; });
  expect("max_tokens", [](SamplingParams& p) { p.max_tokens = -1; });
  expect("min_tokens", [](SamplingParams& p) { p.min_tokens = 17; });
  expect("min_tokens", [](SamplingParams& p) { p.min_tokens = -1; });
  expect("stop_token_ids", [](SamplingParams& p) { p.stop_token_ids = {100}; });
  expect("logprobs", [](SamplingParams& p) { p.logprobs = 21; });
  expect("logprobs", [](SamplingParams& p) { p.logprobs = -1; });  // 100 tokens, 20 served
  expect("logprobs", [](SamplingParams& p) { p.logprobs = -2; });
  expect("prompt_logprobs", [](SamplingParams& p) { p.prompt_logprobs = 21; });
  expect("logprob_token_ids", [](SamplingParams& p) { p.logprob_token_ids = {-1}; });
}

TEST(SamplingParams, AcceptsTheEdges) {
  EXPECT_EQ(refused([](SamplingParams& p) {
              p.temperature = 0.0F;
              p.top_p = 1.0F;
              p.top_k = -1;
              p.min_p = 1.0F;
              p.presence_penalty = -2.0F;
              p.frequency_penalty = 2.0F;
              p.logit_bias = {{0, -1e30F}, {99, 1e30F}};
              p.n = 128;
              p.max_tokens = 0;
              p.logprobs = 20;
              p.prompt_logprobs = 0;
            }),
            "");
  SamplingParams params;
  params.logprobs = -1;
  params.validate(100, -1);
  params.validate(100, 100);
}

}  // namespace
}  // namespace winnow
