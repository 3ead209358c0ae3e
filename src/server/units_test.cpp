// The small parts of the server: JSON guards, keys, inbox, messages, error texts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/api_keys.h"
#include "server/error_body.h"
#include "server/json_fields.h"
#include "server/json_guard.h"
#include "server/openai/chat_messages.h"
#include "server/openai/logprobs_json.h"
#include "server/openai/prepare.h"
#include "server/sse.h"
#include "server/update_inbox.h"

namespace winnow::server {
namespace {

std::string param_of(std::string_view text) {
  try {
    check_json_text(text);
  } catch (const Error& error) {
    return error.param();
  }
  return "none";
}

TEST(JsonGuard, NamesTheFieldOfANumberThatIsNone) {
  EXPECT_EQ(param_of(R"({"a":NaN})"), "a");
  EXPECT_EQ(param_of(R"({"x":1,"b": -Infinity})"), "b");
  EXPECT_EQ(param_of(R"({"logit_bias":{"5":1e999}})"), "5");
  EXPECT_EQ(param_of(R"({"list":[1,2,-1e400]})"), "list");
  EXPECT_EQ(param_of(R"({"a":"NaN","b":[1e300,1e-999,null,true],"n":"\"Infinity"})"), "none");
}

TEST(JsonGuard, MembersAreBounded) {
  const auto object_of = [](int num_members) {
    std::string text = "{";
    for (int i = 0; i < num_members; ++i) {
      if (i > 0) text.push_back(',');
      text += fmt::format(R"("k{}":0)", i);
    }
    text.push_back('}');
    return text;
  };
  EXPECT_NO_THROW(check_json_text(object_of(25'000)));
  EXPECT_THROW(check_json_text(object_of(40'000)), Error);
  std::string many = "[" + object_of(5'000);
  for (int i = 0; i < 50; ++i) many += fmt::format(",{}", object_of(5'000));
  EXPECT_THROW(check_json_text(many), Error);
  EXPECT_NO_THROW(check_json_text(object_of(1'000), kMaxJsonDepth, 1'000'000));
  EXPECT_THROW(check_json_text(object_of(2'000), kMaxJsonDepth, 1'000'000), Error);
}

TEST(JsonGuard, DepthIsBounded) {
  EXPECT_EQ(param_of(std::string(64, '[') + std::string(64, ']')), "none");
  EXPECT_THROW(check_json_text(std::string(65, '[')), Error);
  EXPECT_THROW(check_json_text(std::string(1'000'000, '[')), Error);
  EXPECT_NO_THROW(check_json_text(R"({"a":"[[[[[[[[[[[[[[["})"));
}

TEST(JsonFields, IntegersAreExact) {
  const Json object = Json::parse(R"({"a":5,"b":5.0,"c":5.5,"d":true,"e":"5","f":1e30,"g":null,
      "h":9223372036854775807,"i":9223372036854775808})");
  Fields fields(object);
  EXPECT_EQ(fields.integer("a"), 5);
  EXPECT_EQ(fields.integer("b"), 5);
  EXPECT_EQ(fields.integer("g"), std::nullopt);
  EXPECT_EQ(fields.integer("h"), INT64_MAX);
  for (const char* name : {"c", "d", "e", "f", "i"}) {
    EXPECT_THROW(fields.integer(name), Error) << name;
  }
  EXPECT_TRUE(fields.unknown().empty());
}

TEST(ApiKeys, CompareWholeKeys) {
  const ApiKeys keys({"secret", " padded "});
  EXPECT_TRUE(keys.accepts("secret"));
  EXPECT_TRUE(keys.accepts("padded"));
  EXPECT_FALSE(keys.accepts("secre"));
  EXPECT_FALSE(keys.accepts("secrets"));
  EXPECT_FALSE(keys.accepts(""));
  EXPECT_THROW(ApiKeys({""}), Error);
  EXPECT_TRUE(ApiKeys::guards("/v1"));
  EXPECT_TRUE(ApiKeys::guards("/v1/models"));
  EXPECT_TRUE(ApiKeys::guards("/inference/v1/generate"));
  EXPECT_FALSE(ApiKeys::guards("/v11"));
  EXPECT_FALSE(ApiKeys::guards("/health"));
}

TEST(ErrorBody, KeepsRoutesAndHidesFolders) {
  EXPECT_EQ(without_paths("cannot read /home/me/models/x.json: gone"), "cannot read x.json: gone");
  EXPECT_EQ(without_paths("use POST /v1/chat/completions"), "use POST /v1/chat/completions");
  const Json body = Json::parse(error_body(400, "BadRequestError", "a \"b\" \xFF", "p"));
  EXPECT_EQ(body["error"]["code"], 400);
  EXPECT_EQ(body["error"]["param"], "p");
}

TEST(Sse, FramesOneLine) {
  std::string out;
  append_sse_event(out, R"({"a":1})");
  EXPECT_EQ(out, "data: {\"a\":1}\n\n");
}

TEST(Logprobs, NeverBelowTheFloorAndNeverNan) {
  EXPECT_EQ(json_logprob(-std::numeric_limits<float>::infinity()), -9999.0);
  EXPECT_EQ(json_logprob(std::numeric_limits<float>::quiet_NaN()), -9999.0);
  EXPECT_EQ(json_logprob(-0.5F), -0.5);
}

// A client that reads nothing must not grow memory without bound.
TEST(UpdateInbox, OverflowsAtTheHardLimitAndAfterPatience) {
  const auto big = [] {
    OutputUpdate update;
    update.error = std::string(1000, 'x');
    return update;
  };
  int num_wakes = 0;
  UpdateInbox hard(1, {.soft_bytes = 500, .hard_bytes = 5'000, .patience = std::chrono::hours(1)});
  hard.set_wake([&num_wakes] { ++num_wakes; });
  for (int i = 0; i < 3; ++i) hard.push(0, big());
  EXPECT_FALSE(hard.has_overflown());
  EXPECT_EQ(num_wakes, 1);  // one wake until somebody looks
  for (int i = 0; i < 5; ++i) hard.push(0, big());
  EXPECT_TRUE(hard.has_overflown());
  EXPECT_EQ(num_wakes, 2);
  EXPECT_TRUE(hard.take().updates.empty());

  UpdateInbox soft(1, {.soft_bytes = 500, .hard_bytes = 1 << 30, .patience = {}});
  soft.push(0, big());
  soft.push(0, big());
  EXPECT_TRUE(soft.has_overflown());

  UpdateInbox read(1, {.soft_bytes = 500, .hard_bytes = 5'000, .patience = {}});
  for (int i = 0; i < 20; ++i) {
    read.push(0, big());
    EXPECT_EQ(read.take().updates.size(), 1U);
  }
  EXPECT_FALSE(read.has_overflown());
}

TEST(UpdateInbox, IsTakenInPieces) {
  UpdateInbox inbox(1);
  for (int i = 0; i < 5; ++i) {
    OutputUpdate update;
    update.error = std::string(1000, 'x');
    inbox.push(0, std::move(update));
  }
  inbox.done(0, {});
  EXPECT_EQ(inbox.take(1).updates.size(), 1U);
  const UpdateInbox::News middle = inbox.take(2'000);
  EXPECT_EQ(middle.updates.size(), 2U);
  EXPECT_TRUE(middle.has_more);
  EXPECT_FALSE(middle.all_done);
  const UpdateInbox::News last = inbox.take();
  EXPECT_EQ(last.updates.size(), 2U);
  EXPECT_FALSE(last.has_more);
  EXPECT_TRUE(last.all_done);
}

Json messages(const char* text) { return normalize_messages(Json::parse(text)); }

TEST(Messages, PartsAreJoinedAndNamesUnified) {
  const Json out = messages(R"([
      {"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"user","content":"q"},
      {"role":"assistant","content":null,"reasoning":"because","tool_calls":[
          {"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":[1,2.0]}"}},
          {"id":"2","type":"function","function":{"name":"g","arguments":""}}]},
      {"role":"tool","tool_call_id":"2","content":"second"},
      {"role":"tool","tool_call_id":"1","content":"first"},
      {"role":"user","content":"next"}])");
  EXPECT_EQ(out[0]["content"], "ab");
  EXPECT_EQ(out[2]["reasoning_content"], "because");
  EXPECT_EQ(out[2]["content"], "");
  EXPECT_EQ(out[2]["tool_calls"][0]["function"]["arguments"], Json::parse(R"({"x":[1,2.0]})"));
  EXPECT_EQ(out[2]["tool_calls"][1]["function"]["arguments"], Json::object());
  EXPECT_EQ(out[3]["content"], "first");  // in the order of the calls
  EXPECT_EQ(out[4]["content"], "second");
}

// The template drops them in silence; nothing a client sends may vanish.
TEST(Messages, LaterInstructionsAreKept) {
  const Json out = messages(R"([{"role":"system","content":"one"},
      {"role":"developer","content":"two"},{"role":"user","content":"q"},
      {"role":"assistant","content":"a"},{"role":"system","content":"three"},
      {"role":"user","content":"r"},{"role":"system","content":"four"}])");
  ASSERT_EQ(out.size(), 5U);
  EXPECT_EQ(out[0]["content"], "one\n\ntwo");
  EXPECT_EQ(out[3]["content"], "three\n\nr");
  EXPECT_EQ(out[4], (Json{{"role", "user"}, {"content", "four"}}));
}

TEST(Messages, WhatCannotBeShownIsRefusedByName) {
  const struct {
    const char* text;
    const char* param;
  } kBad[] = {
      {"[]", "messages"},
      {R"([{"role":"wizard","content":"x"}])", "messages[0].role"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
       "messages[0].content[0].type"},
      {R"([{"role":"tool","content":"x"}])", "messages[0].role"},
      {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
       "messages[0].tool_calls[0].function.arguments"},
      {R"([{"role":"user","content":"x"},{"role":"root","content":"x"}])", "messages[1].role"},
  };
  for (const auto& row : kBad) {
    try {
      messages(row.text);
      ADD_FAILURE() << row.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), row.param) << error.text();
    }
  }
}

TEST(Messages, ThinkingModeIsResolvedFromEveryName) {
  const auto mode = [](const char* kwargs, const char* effort) {
    Json variables = Json::parse(kwargs);
    resolve_thinking_mode(variables, effort);
    return variables.value("thinking_mode", std::string("none given"));
  };
  EXPECT_EQ(mode("{}", ""), "none given");
  EXPECT_EQ(mode("{}", "none"), "disabled");
  EXPECT_EQ(mode("{}", "high"), "enabled");
  EXPECT_EQ(mode(R"({"enable_thinking":false})", "high"), "disabled");
  EXPECT_EQ(mode(R"({"thinking":{"type":"adaptive"}})", ""), "adaptive");
  EXPECT_EQ(mode(R"({"thinking_mode":"disabled","enable_thinking":true})", ""), "disabled");
}

TEST(RequestIds, AreCleaned) {
  EXPECT_EQ(clean_request_id("abc-1_2.3:4"), "abc-1_2.3:4");
  EXPECT_EQ(clean_request_id("a\r\nX: y\xFF"), "aX:y");
  EXPECT_EQ(clean_request_id(std::string(500, 'a')).size(), 128U);
}

}  // namespace
}  // namespace winnow::server
