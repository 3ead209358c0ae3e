#include "engine/speculate/speculative_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace winnow {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

SpeculativeConfig parse(const std::string& text,
                        SyntheticSwitch synthetic = SyntheticSwitch::kAllowed) {
  return parse_speculative_config(Json::parse(text), synthetic);
}

const DraftFacts kFacts{.block_size = 7,
                        .vocab_size = 200064,
                        .draft_max_len = 100'000,
                        .target_max_len = 200'000,
                        .tensor_parallel_size = 4,
                        .target_kv_cache_dtype = "fp8"};

/// With `members` besides the method.
SpeculativeConfig resolved(const std::string& members, const DraftFacts& facts = kFacts) {
  SpeculativeConfig config =
      parse(R"({"method":"dspark")" + (members.empty() ? "" : "," + members) + "}");
  resolve_speculative_config(config, facts);
  return config;
}

std::string error_of(const std::string& members, const DraftFacts& facts = kFacts) {
  try {
    (void)resolved(members, facts);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(SpeculativeConfig, BothAnnouncedConfigurationsParse) {
  const SpeculativeConfig nvidia =
      parse(R"({"method":"dspark","num_speculative_tokens":7,"attention_backend":"FLASHINFER_TS",
                "kv_cache_dtype":"fp8","draft_sample_method":"probabilistic"})",
            SyntheticSwitch::kRefused);
  EXPECT_EQ(nvidia.num_drafts, 7);
  EXPECT_EQ(nvidia.kv_cache_dtype, "fp8");
  EXPECT_FALSE(nvidia.is_greedy_draft);
  EXPECT_EQ(nvidia.method, AcceptMethod::kStandard);
  ASSERT_EQ(nvidia.notes.size(), 1U);
  EXPECT_THAT(nvidia.notes[0], HasSubstr("FLASHINFER_TS"));
  const SpeculativeConfig amd =
      parse(R"({"method":"dspark","num_speculative_tokens":3,"attention_backend":"triton_attn"})");
  EXPECT_EQ(amd.num_drafts, 3);
}

TEST(SpeculativeConfig, WhatIsNotSaidHasDefaults) {
  const SpeculativeConfig config = resolved("");
  EXPECT_EQ(config.num_drafts, 7);
  EXPECT_TRUE(config.is_greedy_draft);
  EXPECT_EQ(config.kv_cache_dtype, "fp8");
  EXPECT_EQ(config.draft_tensor_parallel_size, 4);
  EXPECT_EQ(config.max_model_len, 100'000);
  EXPECT_FALSE(config.is_adaptive);
  EXPECT_FALSE(config.is_synthetic());
  EXPECT_EQ(parse(R"({"model":"x"})").model, "x");  // the drafter's config names its kind
  EXPECT_EQ(resolved(R"("num_speculative_tokens":null)").num_drafts, 7);
  EXPECT_EQ(resolved(R"("rejection_sample_method":"block")").method, AcceptMethod::kBlock);
  EXPECT_EQ(resolved(R"("rejection_sample_method":"coupled")").method, AcceptMethod::kCoupled);
}

struct Bad {
  const char* members;
  const char* message;
};

TEST(SpeculativeConfig, EveryKeyRefusesWhatItDoesNotTake) {
  for (const Bad& bad : std::initializer_list<Bad>{
           {R"("num_speculativ_tokens":3)", "accepted: method"},
           {R"("num_speculative_tokens":0)", "positive integer"},
           {R"("num_speculative_tokens":-1)", "positive integer"},
           {R"("num_speculative_tokens":2.5)", "positive integer"},
           {R"("num_speculative_tokens":"3")", "positive integer"},
           {R"("num_speculative_tokens":99999999999999999999)", "positive integer"},
           {R"("num_speculative_tokens":8)", "block of 7"},
           {R"("num_speculative_tokens":17)", "more than 16"},
           {R"("model":3)", "not a string"},
           {R"("attention_backend":"FLASHINFR")", "accepted in any case: auto"},
           {R"("kv_cache_dtype":"nvfp4")", "use fp8"},
           {R"("kv_cache_dtype":"fp8_e5m2")", "mantissa"},
           {R"("kv_cache_dtype":"int8")", "not one of"},
           {R"("draft_sample_method":"gumbel")", "greedy, probabilistic"},
           {R"("rejection_sample_method":"strict")", "standard, block, coupled, synthetic"},
           {R"("tensor_parallel_size":4)", "draft_tensor_parallel_size"},
           {R"("draft_tensor_parallel_size":2)", "neither 1 nor the target's 4"},
           {R"("enable_adaptive_verification":1)", "true or false"},
           {R"("dspark_draft_topk":0)", "positive integer"},
           {R"("dspark_draft_topk":200065)", "vocabulary of 200064"},
           {R"("quantization":8)", "not a string"},
           {R"("max_model_len":100001)", "drafter's 100000"},
           {R"("revision":1)", "not a string"},
           {R"("enforce_eager":"yes")", "true or false"},
           {R"("use_local_argmax_reduction":true,"draft_sample_method":"probabilistic")", "greedy"},
           {R"("synthetic_acceptance_length":3.2)", "rejection_sample_method = synthetic"},
           {R"("rejection_sample_method":"synthetic")", "exactly one"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_length":2,
               "synthetic_acceptance_rates":[1,1,1,1,1,1,1])",
            "exactly one"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_length":0.5)",
            "below 1"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_length":8.5)", "[1, 8]"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_rates":[1,0.5])",
            "2 rates for 7"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_rates":[0.5,1])",
            "rise"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_rates":[])", "none"},
           {R"("rejection_sample_method":"synthetic","synthetic_acceptance_rates":["1"])",
            "list of numbers"},
           {R"("num_speculative_tokens_per_batch_size":3)", "not a list"},
           {R"("num_speculative_tokens_per_batch_size":[[1,2]])", "[first, last, tokens]"},
           {R"("num_speculative_tokens_per_batch_size":[[1,4,3],[4,8,1]])", "overlaps"},
           {R"("num_speculative_tokens_per_batch_size":[[4,1,3]])", "ends before"},
           {R"("num_speculative_tokens_per_batch_size":[[1,4,8]])", "num_speculative_tokens = 7"},
           {R"("num_speculative_tokens_per_batch_size":[[1,4,3]],
               "enable_adaptive_verification":true)",
            "fixed or"},
       }) {
    EXPECT_THAT(error_of(bad.members), HasSubstr(bad.message)) << bad.members;
  }
  EXPECT_THROW(parse("[]"), Error);
  EXPECT_THROW(parse("{}"), Error);
  EXPECT_THROW(parse(R"({"method":"dspork"})"), Error);
  EXPECT_THROW(parse(R"({"method":3})"), Error);
}

TEST(SpeculativeConfig, OtherMethodsAreUnsupported) {
  try {
    (void)parse(R"({"method":"eagle3"})");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

TEST(SpeculativeConfig, SyntheticAcceptanceNeedsItsSwitch) {
  const std::string text =
      R"({"method":"dspark","rejection_sample_method":"synthetic","synthetic_acceptance_length":3})";
  EXPECT_TRUE(parse(text).is_synthetic());
  for (const std::string& asked :
       {text, std::string(R"({"method":"dspark","rejection_sample_method":"synthetic"})"),
        std::string(R"({"method":"dspark","synthetic_acceptance_rates":[1]})")}) {
    try {
      (void)parse(asked, SyntheticSwitch::kRefused);
      ADD_FAILURE() << asked;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
  }
}

TEST(SpeculativeConfig, AnInheritedNvfp4CacheIsRefused) {
  DraftFacts facts = kFacts;
  facts.target_kv_cache_dtype = "nvfp4";
  EXPECT_THAT(error_of("", facts), HasSubstr("\"kv_cache_dtype\": \"fp8\""));
  EXPECT_EQ(resolved(R"("kv_cache_dtype":"bfloat16")", facts).kv_cache_dtype, "bf16");
}

TEST(SpeculativeConfig, LengthsFollowTheBatch) {
  const SpeculativeConfig config =
      resolved(R"("num_speculative_tokens_per_batch_size":[[1,4,7],[5,16,3],[17,256,0]])");
  const auto length = [&](std::int32_t num_sequences) {
    return draft_length_for_batch(config.lengths_by_batch, config.num_drafts.value_or(0),
                                  num_sequences);
  };
  EXPECT_EQ(length(1), 7);
  EXPECT_EQ(length(16), 3);
  EXPECT_EQ(length(17), 0);
  EXPECT_EQ(length(300), 7);
  EXPECT_EQ(draft_length_for_batch({}, 7, 5), 7);
}

TEST(SpeculativeConfig, WhatHasNoEffectIsSaid) {
  EXPECT_EQ(resolved(R"("revision":"main","enforce_eager":true,"disable_eagle_block_drop":false)")
                .notes.size(),
            2U);
  EXPECT_TRUE(resolved(R"("attention_backend":"AUTO")").notes.empty());
}

}  // namespace
}  // namespace winnow
