// Drafts in /metrics and in the replies of requests that ask for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/metrics.h"
#include "server/openai/speculation_json.h"

namespace winnow::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DraftMetrics, AreCountedByVllmsNames) {
  EngineStats stats;
  stats.num_drafts = 10;
  stats.draft_tokens = 30;
  stats.accepted_tokens = 14;
  stats.accepted_by_position = {8, 5, 1};
  ServerMetrics metrics(
      {.model_name = "m", .max_model_len = 64, .cache_config = {}, .num_speculative_tokens = 3});
  const std::string text = metrics.text(stats);
  for (const char* line :
       {"vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"m\"} 10",
        "vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"m\"} 30",
        "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"m\"} 14",
        "position=\"0\"} 8", "position=\"2\"} 1",
        "winnow:spec_decode_mean_acceptance_length{engine=\"0\",model_name=\"m\"} 2.4"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("position=\"3\"")));
  EXPECT_THAT(text, Not(HasSubstr("synthetic")));
}

TEST(DraftMetrics, AreAbsentWhereNothingIsDrafted) {
  ServerMetrics metrics({.model_name = "m", .max_model_len = 64, .cache_config = {}});
  EXPECT_THAT(metrics.text({}), Not(HasSubstr("spec_decode")));
}

TEST(DraftMetrics, SayThatAcceptanceIsSynthetic) {
  ServerMetrics metrics({.model_name = "m",
                         .max_model_len = 64,
                         .cache_config = {},
                         .num_speculative_tokens = 3,
                         .is_acceptance_synthetic = true});
  EXPECT_THAT(metrics.text({}), HasSubstr("winnow:spec_decode_synthetic_acceptance"));
}

TEST(DraftReport, SumsUpARequestsBlocks) {
  RequestStats stats;
  stats.drafted_steps = {{3, 3}, {3, 0}, {3, 1}, {1, 1}};
  const Json summary = speculation_json(stats, 4, DraftReport::kSummary);
  EXPECT_EQ(summary["mean_acceptance_length"], 2.25);
  EXPECT_EQ(summary["draft_acceptance_rate"], 0.5);
  EXPECT_EQ(summary["acceptance_histogram"], Json::parse("[1,2,0,1,0]"));
  EXPECT_EQ(summary["acceptance_histogram_by_draft_length"],
            Json::parse(R"({"1":[0,1],"3":[1,1,0,1]})"));
  EXPECT_EQ(summary["num_spec_steps"], 4);
  EXPECT_EQ(summary["num_accepted_draft_tokens"], 5);
  EXPECT_EQ(summary["num_draft_tokens"], 10);
  EXPECT_EQ(summary["num_spec_tokens"], 4);
  EXPECT_FALSE(summary.contains("per_step_accepted"));
  const Json detailed = speculation_json(stats, 4, DraftReport::kDetailed);
  EXPECT_EQ(detailed["per_step_accepted"], Json::parse("[3,0,1,1]"));
  EXPECT_EQ(detailed["per_step_drafted"], Json::parse("[3,3,3,1]"));
  EXPECT_TRUE(speculation_json(stats, 4, DraftReport::kNone).is_null());
  EXPECT_TRUE(speculation_json({}, 4, DraftReport::kDetailed).is_null());
}

}  // namespace
}  // namespace winnow::server
