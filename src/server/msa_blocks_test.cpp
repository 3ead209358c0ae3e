// return_msa_blocks: what replies say of the blocks that MSA kept, in both routes, whole and
// streamed.
#include <gtest/gtest.h>

#include <string>

#include "server/openai/msa_blocks_json.h"
#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

constexpr const char* kCompletions = "/v1/completions";
// Blocks 0, 1, 1 and none as 16-bit numbers.
constexpr const char* kSecondToken = "AAABAAEA//8=";

TEST(MsaBlocks, AreLeftOutUnlessAskedFor) {
  TestServer server;
  const Json body = Json::parse(server.post(kChat, chat()).body);
  EXPECT_FALSE(body.contains("msa"));
  EXPECT_FALSE(body["choices"][0].contains("msa_blocks"));
  EXPECT_EQ(server.engine().last_request().num_block_selections, 0);
  server.post(kChat, chat(R"("return_msa_blocks":false)"));
  EXPECT_EQ(server.engine().last_request().num_block_selections, 0);
}

TEST(MsaBlocks, StandBesideEachTokenOfAChat) {
  TestServer server;
  const Json body = Json::parse(server.post(kChat, chat(R"("return_msa_blocks":true)")).body);
  EXPECT_EQ(body["msa"]["layers"], Json::array({2, 3}));
  EXPECT_EQ(body["msa"]["num_groups"], 1);
  EXPECT_EQ(body["msa"]["top_k"], 2);
  EXPECT_EQ(body["msa"]["block_tokens"], 128);
  const Json& tokens = body["choices"][0]["msa_blocks"];
  ASSERT_EQ(tokens.size(), 13U);  // "Hello, world" and eos
  EXPECT_EQ(tokens[0]["token"], "H");
  EXPECT_EQ(tokens[0]["position"], 19);  // after "user: Hi\nassistant:"
  EXPECT_EQ(tokens[1]["token"], "e");
  EXPECT_EQ(tokens[1]["position"], 20);
  EXPECT_EQ(tokens[1]["kept"], kSecondToken);
}

TEST(MsaBlocks, OfAStreamAreThoseOfTheWhole) {
  TestServer server;
  const std::string members = R"("return_msa_blocks":true,"stream_interval":3)";
  const Json whole = Json::parse(server.post(kChat, chat(members)).body);
  Json streamed = Json::array();
  const auto events = parse_events(server.post(kChat, chat(members + R"(,"stream":true)")).body);
  EXPECT_EQ(events.front()["msa"], whole["msa"]);
  for (const Json& event : events) {
    if (!event["choices"][0].contains("msa_blocks")) continue;
    for (const Json& token : event["choices"][0]["msa_blocks"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed, whole["choices"][0]["msa_blocks"]);
}

TEST(MsaBlocks, ComeWithPlainCompletionsOfSeveralPrompts) {
  TestServer server;
  const Json body = Json::parse(
      server
          .post(kCompletions,
                R"({"prompt":["ab","abcd"],"n":2,"max_tokens":2,"return_msa_blocks":1})")
          .body);
  EXPECT_EQ(body["msa"]["top_k"], 2);
  for (std::size_t i = 0; i < 4; ++i) {
    const Json& tokens = body["choices"][i]["msa_blocks"];
    ASSERT_EQ(tokens.size(), 2U);
    EXPECT_EQ(tokens[0]["position"], i < 2 ? 2 : 4);
    EXPECT_TRUE(tokens[0]["kept"].is_string());
    EXPECT_TRUE(tokens[1]["kept"].is_null());  // one token was asked for
  }
}

TEST(MsaBlocks, AreBounded) {
  TestServer server;
  const TestResponse too_many = server.post(kChat, chat(R"("return_msa_blocks":2000000000)"));
  EXPECT_EQ(too_many.status, 400);
  EXPECT_EQ(error_param(too_many), "return_msa_blocks");
  const TestResponse wrong = server.post(kChat, chat(R"("return_msa_blocks":"yes")"));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(error_param(wrong), "return_msa_blocks");
  // M3.1: 57 layers, 4 groups, 16 blocks: 7,296 bytes a token.
  const MsaShape flash{
      .layers = std::vector<std::int32_t>(57), .num_groups = 4, .top_k = 16, .block_tokens = 128};
  EXPECT_EQ(max_block_selections(flash, 1), (32 << 20) / 7296);
  EXPECT_EQ(max_block_selections(flash, 4), (32 << 20) / (4 * 7296));
  EXPECT_EQ(max_block_selections(flash, 1 << 20), 1);
}

}  // namespace
}  // namespace winnow::server::testing
