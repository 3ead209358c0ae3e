// /v1/messages over real sockets with a fake engine: shapes, event order, errors, and how bodies
// become prompts. The faults I1, I2, I4 and H3 of the field list on this route.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "server/anthropic/message_content.h"
#include "server/openai/chat_messages.h"
#include "server/testing/test_server.h"
#include "server/thinking_seal.h"

namespace winnow::server::testing {
namespace {

constexpr const char* kMessages = "/v1/messages";
constexpr const char* kCount = "/v1/messages/count_tokens";
constexpr const char* kCall =
    "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"look_up\">"
    "]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>\n"
    "]<]minimax[>[</tool_call>";
constexpr const char* kTools =
    R"("tools":[{"name":"look_up","input_schema":{"properties":{"city":{"type":"string"}}}}])";

std::string body(const std::string& members,
                 const std::string& messages = R"([{"role":"user","content":"Hi"}])") {
  return fmt::format(R"({{"model":"test-model","max_tokens":512,"messages":{}{}{}}})", messages,
                     members.empty() ? "" : ",", members);
}

std::string error_message(const TestResponse& response) {
  return Json::parse(response.body)["error"]["message"].get<std::string>();
}

std::vector<std::string> event_names(const std::string& stream) {
  std::vector<std::string> out;
  std::size_t at = 0;
  while ((at = stream.find("event: ", at)) != std::string::npos) {
    at += 7;
    out.push_back(stream.substr(at, stream.find('\n', at) - at));
  }
  return out;
}

/// The prompt that the engine got, as PlainRenderer writes it.
std::string last_prompt(TestServer& server) {
  std::string out;
  for (const TokenId token : server.engine().last_request().prompt) {
    out.push_back(static_cast<char>(token));
  }
  return out;
}

TEST(Messages, AnswerInFull) {
  TestServer server;
  const TestResponse response = server.post(kMessages, body(""));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_FALSE(response.header("request-id").empty());
  const Json message = Json::parse(response.body);
  EXPECT_TRUE(message["id"].get<std::string>().starts_with("msg_"));
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["model"], "test-model");
  const Json expected{{{"type", "text"}, {"text", "Hello, world"}}};
  EXPECT_EQ(message["content"], expected);
  EXPECT_EQ(message["stop_reason"], "end_turn");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  EXPECT_EQ(message["usage"]["input_tokens"], 19);
  EXPECT_EQ(message["usage"]["output_tokens"], 13);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 0);
}

TEST(Messages, StreamHasEveryEventInOrder) {
  TestServerOptions options;
  options.answer = std::string("<mm:think>hm</mm:think>Look.") + kCall;
  TestServer server(options);
  const TestResponse response = server.post(
      kMessages, body(std::string(R"("stream":true,"thinking":{"type":"adaptive"},)") + kTools));
  ASSERT_EQ(response.status, 200) << response.body;
  std::vector<std::string> names = event_names(response.body);
  const auto repeated = [](const std::string& a, const std::string& b) {
    return a == b && a == "content_block_delta";
  };
  names.erase(std::unique(names.begin(), names.end(), repeated), names.end());
  const std::string start = "content_block_start";
  const std::string delta = "content_block_delta";
  const std::string stop = "content_block_stop";
  EXPECT_EQ(names,
            (std::vector<std::string>{"message_start", "ping", start, delta, stop, start, delta,
                                      stop, start, delta, stop, "message_delta", "message_stop"}));
  const std::vector<Json> events = parse_events(response.body);
  EXPECT_EQ(events.front()["message"]["usage"]["input_tokens"], 19);
  EXPECT_EQ(events.front()["message"]["content"], Json::array());
  EXPECT_TRUE(events.front()["message"]["stop_reason"].is_null());
  std::string thinking;
  std::string text;
  std::string json;
  std::string signature;
  std::vector<Json> blocks;
  for (const Json& event : events) {
    if (event["type"] == start) {
      EXPECT_EQ(event["index"], blocks.size());
      blocks.push_back(event["content_block"]);
    }
    if (event["type"] != delta) continue;
    EXPECT_EQ(event["index"], blocks.size() - 1);
    thinking += event["delta"].value("thinking", "");
    text += event["delta"].value("text", "");
    json += event["delta"].value("partial_json", "");
    signature += event["delta"].value("signature", "");
  }
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[0], (Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}));
  EXPECT_EQ(blocks[1], (Json{{"type", "text"}, {"text", ""}}));
  EXPECT_EQ(blocks[2]["name"], "look_up");
  EXPECT_EQ(blocks[2]["input"], Json::object());
  EXPECT_TRUE(blocks[2]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(thinking, "hm");
  EXPECT_EQ(open_seal(signature), "hm");
  EXPECT_EQ(text, "Look.");
  EXPECT_EQ(Json::parse(json), (Json{{"city", "Paris"}}));
  const Json& end = events[events.size() - 2];
  EXPECT_EQ(end["delta"]["stop_reason"], "tool_use");
  EXPECT_GT(end["usage"]["output_tokens"], 10);
  EXPECT_EQ(end["usage"]["input_tokens"], 19);
}

/// The partial_json of each call of a streamed reply, piece by piece.
std::vector<std::vector<std::string>> call_pieces(const std::string& stream) {
  std::vector<std::vector<std::string>> calls;
  for (const Json& event : parse_events(stream)) {
    const Json delta = event.value("delta", Json::object());
    if (event["type"] == "content_block_start" && event["content_block"]["type"] == "tool_use") {
      calls.emplace_back();
    }
    if (delta.contains("partial_json")) calls.back().push_back(delta["partial_json"]);
  }
  return calls;
}

TEST(Messages, ArgumentsStreamAsTheyAreWritten) {
  TestServerOptions options;
  options.answer = kCall;
  TestServer server(options);
  const auto calls =
      call_pieces(server.post(kMessages, body(std::string(R"("stream":true,)") + kTools)).body);
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_GT(calls[0].size(), 5U);  // "Paris", a letter a token
  EXPECT_EQ(std::accumulate(calls[0].begin(), calls[0].end(), std::string()),
            R"({"city":"Paris"})");
}

// No client may run it, not even one that reads unfinished JSON; the whole reply has it as text.
TEST(Messages, ACallThatTurnsOutToBeMalformedIsClosedAsNoJson) {
  TestServerOptions options;
  std::string malformed = kCall;
  malformed.replace(malformed.find("]<]minimax[>[</city>"), 20, "");
  options.answer = malformed;
  TestServer server(options);
  const std::string stream =
      server.post(kMessages, body(std::string(R"("stream":true,)") + kTools)).body;
  const auto calls = call_pieces(stream);
  ASSERT_EQ(calls.size(), 1U) << stream;
  EXPECT_EQ(calls[0].back(), "\x01");
  const std::vector<Json> events = parse_events(stream);
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "end_turn");
}

TEST(Messages, ACallThatIsCutStaysUnfinished) {
  TestServerOptions options;
  options.answer = kCall;
  TestServer server(options);
  const TestResponse response = server.post(
      kMessages, fmt::format(R"({{"model":"test-model","max_tokens":{},"stream":true,"messages":
          [{{"role":"user","content":"Hi"}}],{}}})",
                             std::string_view(kCall).find("ris]"), kTools));
  const auto calls = call_pieces(response.body);
  ASSERT_EQ(calls.size(), 1U) << response.body;
  EXPECT_EQ(std::accumulate(calls[0].begin(), calls[0].end(), std::string()), R"({"city":"Pa)");
  const std::vector<Json> events = parse_events(response.body);
  EXPECT_EQ(events[events.size() - 2]["delta"]["stop_reason"], "max_tokens");
}

TEST(Messages, WholeEqualsStream) {
  TestServerOptions options;
  options.answer = std::string("<mm:think>hm</mm:think>Look.") + kCall;
  TestServer server(options);
  const Json message = Json::parse(
      server.post(kMessages, body(std::string(R"("thinking":{"type":"adaptive"},)") + kTools))
          .body);
  ASSERT_EQ(message["content"].size(), 3U) << message;
  EXPECT_EQ(message["content"][0]["thinking"], "hm");
  EXPECT_EQ(message["content"][1]["text"], "Look.");
  EXPECT_EQ(message["content"][2]["input"], (Json{{"city", "Paris"}}));
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

TEST(Messages, OmittedThinkingStaysInItsSignature) {
  TestServerOptions options;
  options.answer = "<mm:think>secret plan</mm:think>Done.";
  TestServer server(options);
  const std::string thinking = R"("thinking":{"type":"adaptive","display":"omitted"})";
  const Json message = Json::parse(server.post(kMessages, body(thinking)).body);
  EXPECT_EQ(message["content"][0]["thinking"], "");
  EXPECT_EQ(open_seal(message["content"][0]["signature"].get<std::string>()), "secret plan");
  const TestResponse stream = server.post(kMessages, body(thinking + R"(,"stream":true)"));
  EXPECT_EQ(stream.body.find("thinking_delta"), std::string::npos);
  EXPECT_NE(stream.body.find("signature_delta"), std::string::npos);
}

TEST(Messages, StopReasons) {
  TestServer server;
  Json message = Json::parse(server.post(kMessages, body(R"("stop_sequences":["o, w"])")).body);
  EXPECT_EQ(message["stop_reason"], "stop_sequence");
  EXPECT_EQ(message["stop_sequence"], "o, w");
  EXPECT_EQ(message["content"][0]["text"], "Hell");
  const std::string few =
      R"({"model":"test-model","max_tokens":3,"messages":[{"role":"user","content":"Hi"}]})";
  message = Json::parse(server.post(kMessages, few).body);
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  // More than fits is asked for by every agent: the answer is cut by the context, not refused.
  TestServerOptions options;
  options.engine.step = std::chrono::microseconds(1);
  options.answer = std::string(5000, 'x');
  TestServer endless(options);
  const std::string many =
      R"({"model":"test-model","max_tokens":32000,"messages":[{"role":"user","content":"Hi"}]})";
  message = Json::parse(endless.post(kMessages, many).body);
  EXPECT_EQ(message["stop_reason"], "model_context_window_exceeded");
}

TEST(Messages, ContentBecomesChatMessages) {
  TestServer server;
  const std::string messages = R"([
    {"role":"user","content":[{"type":"text","text":"One","cache_control":{"type":"ephemeral"}},
                              {"type":"text","text":"two"}]},
    {"role":"assistant","content":[
      {"type":"thinking","thinking":"hm","signature":"foreign"},
      {"type":"redacted_thinking","data":"xyz"},
      {"type":"text","text":"Looking."},
      {"type":"tool_use","id":"a","name":"f","input":{"x":1}},
      {"type":"tool_use","id":"b","name":"f","input":{}}]},
    {"role":"user","content":[
      {"type":"text","text":"And now?"},
      {"type":"tool_result","tool_use_id":"b","content":[{"type":"text","text":"B"}]},
      {"type":"tool_result","tool_use_id":"a","content":"A","is_error":true}]}])";
  const TestResponse response = server.post(
      kMessages, body(R"("system":[{"type":"text","text":"x-anthropic-billing-header: cch=1f;"},
              {"type":"text","text":"Be terse."},{"type":"text","text":"Be kind."}])",
                      messages));
  ASSERT_EQ(response.status, 200) << response.body;
  // Results stand in the order of their calls, before the text beside them.
  EXPECT_EQ(last_prompt(server),
            "system: Be terse.\n\nBe kind.\nuser: One\ntwo\nassistant: Looking.\n"
            "tool: Error: A\ntool: B\nuser: And now?\nassistant:");
}

TEST(Messages, DeferredToolsComeInWhenFound) {
  ToolChanges changes;
  const Json messages = Json::parse(R"([
    {"role":"user","content":"x"},
    {"role":"assistant","content":[{"type":"tool_use","id":"a","name":"search","input":{}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"a",
        "content":[{"type":"tool_reference","tool_name":"found"}]}]},
    {"role":"system","content":[
        {"type":"tool_addition","tool":{"type":"tool_reference","name":"added"}},
        {"type":"tool_removal","tool":{"type":"tool_reference","name":"gone"}}]}])");
  const Json chat = chat_messages_of(messages, changes);
  ASSERT_EQ(chat.size(), 3U);
  EXPECT_EQ(chat[2]["content"], "found");
  EXPECT_TRUE(changes.offers("found", true));
  EXPECT_TRUE(changes.offers("added", true));
  EXPECT_TRUE(changes.offers("plain", false));
  EXPECT_FALSE(changes.offers("other", true));
  EXPECT_FALSE(changes.offers("gone", false));
  // One that was not found is not offered, and none is left to choose from.
  TestServer server;
  const std::string deferred = R"("tools":[{"name":"f","input_schema":{},"defer_loading":true}])";
  EXPECT_EQ(server.post(kMessages, body(deferred)).status, 200);
  EXPECT_EQ(server.post(kMessages, body(deferred + R"(,"tool_choice":{"type":"any"})")).status,
            400);
}

TEST(Messages, EmptyContentIsServedOrRefused) {
  TestServer server;
  for (const char* content : {R"("")", "[]", "null"}) {
    const std::string messages = fmt::format(R"([{{"role":"user","content":{}}}])", content);
    EXPECT_EQ(server.post(kMessages, body("", messages)).status, 200) << content;
    EXPECT_EQ(last_prompt(server), "user: \nassistant:");
  }
  const std::string nothing = R"([{"role":"system","content":[]}])";
  EXPECT_EQ(server.post(kMessages, body("", nothing)).status, 400);
  const std::string prefill =
      R"([{"role":"user","content":"x"},{"role":"assistant","content":""}])";
  EXPECT_EQ(server.post(kMessages, body("", prefill)).status, 400);
}

TEST(Messages, StopSequencesDoNotApplyToThinking) {
  TestServerOptions options;
  options.answer = "<mm:think>not STOP yet</mm:think>Now STOP here";
  TestServer server(options);
  const Json message = Json::parse(
      server.post(kMessages, body(R"("stop_sequences":["STOP"],"thinking":{"type":"adaptive"})"))
          .body);
  EXPECT_EQ(message["content"][0]["thinking"], "not STOP yet");
  EXPECT_EQ(message["content"][1]["text"], "Now ");
  EXPECT_EQ(message["stop_reason"], "stop_sequence");
}

TEST(Messages, ThousandsOfCallsAndResultsAreMatchedInReasonableTime) {
  std::string calls;
  std::string results;
  for (int i = 0; i < 30'000; ++i) {
    calls += fmt::format(R"(,{{"type":"tool_use","id":"c{}","name":"f","input":{{}}}})", i);
    results += fmt::format(R"(,{{"type":"tool_result","tool_use_id":"c{}"}})", 29'999 - i);
  }
  const Json messages = Json::parse(fmt::format(
      R"([{{"role":"user","content":"x"}},{{"role":"assistant","content":[{}]}},
          {{"role":"user","content":[{}]}}])",
      calls.substr(1), results.substr(1)));
  ToolChanges changes;
  const Json chat = normalize_messages(chat_messages_of(messages, changes));
  EXPECT_EQ(chat.size(), 30'002U);
  EXPECT_EQ(chat[2]["tool_call_id"], "c0");
  EXPECT_EQ(chat.back()["tool_call_id"], "c29999");
}

TEST(Messages, UnfinishedThinkingAndCallsAreNoAnswer) {
  TestServerOptions options;
  options.answer = "<mm:think>never closed";
  {
    TestServer server(options);
    const Json message =
        Json::parse(server.post(kMessages, body(R"("thinking":{"type":"adaptive"})")).body);
    ASSERT_EQ(message["content"].size(), 1U);
    EXPECT_EQ(message["content"][0]["thinking"], "never closed");
  }
  options.answer = std::string("Look.") + std::string(kCall).substr(0, 60);
  TestServer server(options);
  const Json message = Json::parse(server.post(kMessages, body(kTools)).body);
  ASSERT_EQ(message["content"].size(), 1U) << message;
  EXPECT_EQ(message["content"][0]["text"], "Look.");
  EXPECT_EQ(message["stop_reason"], "end_turn");
}

TEST(Messages, AnAssistantsLastMessageIsContinued) {
  TestServer server;
  const TestResponse response = server.post(
      kMessages,
      body("", R"([{"role":"user","content":"Hi"},{"role":"assistant","content":"The answer"}])"));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(last_prompt(server), "user: Hi\nassistant: The answer");
}

TEST(Messages, BodiesOfCodingAgentsAreTaken) {
  TestServer server;
  const std::string members = R"("system":[{"type":"text","text":"You are an agent.",
      "cache_control":{"type":"ephemeral","ttl":"1h"}}],
    "tools":[],"metadata":{"user_id":"user_1_session_2"},"stream":true,
    "thinking":{"type":"enabled","budget_tokens":500},"temperature":1,
    "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},
    "output_config":{"effort":"high"},"service_tier":"auto","unheard_of":{"a":1})";
  const TestResponse response =
      server.post(std::string(kMessages) + "?beta=true", body(members),
                  "anthropic-version: 2023-06-01\r\nanthropic-beta: never-heard-of-2030-01-01\r\n"
                  "x-app: cli\r\n");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_NE(response.body.find("\"applied_edits\":[]"), std::string::npos);
  EXPECT_EQ(server.engine().last_request().fairness_key, "session user_1_session_2");
}

struct Refusal {
  const char* members;
  const char* messages;
  const char* message;  // how it begins
};

TEST(Messages, RefusalsNameTheirFields) {
  TestServer server;
  constexpr const char* kHi = R"([{"role":"user","content":"Hi"}])";
  const Refusal refusals[] = {
      {"", "[]", "messages: the array is empty"},
      {"", "null", "messages: missing"},
      {"", R"({"role":"user"})", "messages: an object is not an array"},
      {"", R"([{"role":"root","content":"x"}])", "messages[0].role: 'root'"},
      {"", R"([{"role":"user","content":5}])", "messages[0].content: 5 is not"},
      {"", R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text:"},
      {"", R"([{"role":"user","content":[{"type":"image","source":{}}]}])",
       "messages[0].content[0].type: 'image': this server was started without vision"},
      {"", R"([{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}])",
       "messages[0].content[0].tool_use_id: 'a' is no tool_use"},
      {"",
       R"([{"role":"user","content":"x"},{"role":"assistant","content":[
           {"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":"y"}])",
       "messages[1].content[0].id: the tool_use 'a' has no tool_result"},
      {R"("temperature":NaN)", kHi, "temperature:"},
      {R"("top_p":1e999)", kHi, "top_p:"},
      {R"("temperature":true)", kHi, "temperature: true is not a number"},
      {R"("top_k":-5)", kHi, "top_k:"},
      {R"("stop_sequences":[""])", kHi, "stop_sequences: a stop string is empty"},
      {R"("thinking":{"type":"on"})", kHi, "thinking.type:"},
      {R"("thinking":{"type":"enabled","budget_tokens":512})", kHi, "thinking.budget_tokens:"},
      {R"("tools":[{"type":"web_search_20250305","name":"web_search"}])", kHi,
       "tools[0].type: 'web_search_20250305': built-in tools are not offered"},
      {R"("tools":[{"name":"f"}])", kHi, "tools[0].input_schema: missing"},
      {R"("tool_choice":{"type":"any"})", kHi, "tool_choice: needs tools"},
      {R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"})", kHi,
       "tool_choice.name: 'g' is not among the tools"},
      {R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"some"})", kHi,
       "tool_choice.type:"},
      {R"("output_config":{"effort":"huge"})", kHi, "output_config.effort:"},
      {R"("output_config":{"format":{"type":"xml"}})", kHi, "output_config.format.type:"},
      {R"("mcp_servers":[{"url":"x"}])", kHi, "mcp_servers: not offered"},
      {R"("system":[{"type":"image"}])", kHi, "system[0].type: 'image'"},
  };
  for (const Refusal& refusal : refusals) {
    const TestResponse response = server.post(kMessages, body(refusal.members, refusal.messages));
    EXPECT_EQ(response.status, 400) << refusal.members << refusal.messages;
    const Json error = Json::parse(response.body);
    EXPECT_EQ(error["type"], "error");
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(error_message(response).starts_with(refusal.message)) << response.body;
  }
  EXPECT_EQ(server.post(kMessages, R"({"model":"test-model","messages":[]})").status, 400);
  const TestResponse no_limit = server.post(
      kMessages, R"({"model":"test-model","messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(error_message(no_limit), "max_tokens: missing");
  EXPECT_EQ(server.post(kMessages, body("")).status, 200);
}

TEST(Messages, ErrorsHaveTheTypesOfTheirStatus) {
  TestServerOptions options;
  options.app.keys = ApiKeys({"good"});
  options.http.max_body_bytes = 4096;
  TestServer server(options);
  const std::string key = "x-api-key: good\r\n";
  const auto type_of = [](const TestResponse& response) {
    return Json::parse(response.body)["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type_of(server.post(kMessages, body(""))), "authentication_error");
  EXPECT_EQ(server.post(kMessages, body(""), key).status, 200);
  EXPECT_EQ(server.post(kMessages, body(""), "Authorization: Bearer good\r\n").status, 200);
  EXPECT_EQ(type_of(server.post(kMessages, "{", key)), "invalid_request_error");
  const std::string unknown =
      R"({"model":"other","max_tokens":1,"messages":[{"role":"user","content":"x"}]})";
  const TestResponse not_found = server.post(kMessages, unknown, key);
  EXPECT_EQ(not_found.status, 404);
  EXPECT_EQ(type_of(not_found), "not_found_error");
  const TestResponse batches = server.post("/v1/messages/batches", "{}", key);
  EXPECT_EQ(type_of(batches), "not_found_error");
  const TestResponse large =
      server.post(kMessages, body(R"("system":")" + std::string(5000, 'x') + '"'), key);
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(type_of(large), "request_too_large");
  options.http.max_body_bytes = 1 << 20;
  const TestResponse too_long = TestServer(options).post(
      kMessages, body("", R"([{"role":"user","content":")" + std::string(5000, 'x') + R"("}])"),
      key);
  EXPECT_EQ(too_long.status, 400);
  EXPECT_TRUE(error_message(too_long).starts_with("prompt is too long: 5017 tokens > 4096 maximum"))
      << too_long.body;
  server.app().start_draining();
  const TestResponse draining = server.post(kMessages, body(""), key);
  EXPECT_EQ(draining.status, 503);
  EXPECT_EQ(type_of(draining), "overloaded_error");
}

TEST(Messages, AFailureInAStreamIsAnErrorEventOrAStatus) {
  TestServerOptions options;
  options.engine.fail_steps = true;
  TestServer server(options);
  const TestResponse stream = server.post(kMessages, body(R"("stream":true)"));
  if (stream.status == 200) {
    ASSERT_FALSE(event_names(stream.body).empty()) << stream.body;
    EXPECT_EQ(event_names(stream.body).back(), "error");
    EXPECT_EQ(parse_events(stream.body).back()["error"]["type"], "api_error");
  } else {  // the step had failed before the first event was sent
    EXPECT_EQ(stream.status, 500);
    EXPECT_EQ(Json::parse(stream.body)["error"]["type"], "api_error");
  }
  const TestResponse whole = server.post(kMessages, body(""));
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(Json::parse(whole.body)["error"]["type"], "api_error");
}

TEST(Messages, TokensAreCountedAsTheyWouldBeSent) {
  TestServer server;
  const std::string system = R"("system":"Be terse.")";
  const TestResponse count = server.post(kCount, body(system));
  ASSERT_EQ(count.status, 200) << count.body;
  const Json message = Json::parse(server.post(kMessages, body(system)).body);
  EXPECT_EQ(Json::parse(count.body)["input_tokens"], message["usage"]["input_tokens"]);
  const std::string no_limit =
      R"({"model":"test-model","messages":[{"role":"user","content":"Hi"}]})";
  EXPECT_EQ(Json::parse(server.post(kCount, no_limit).body)["input_tokens"], 19);
  EXPECT_EQ(server.post(kCount, "[]").status, 400);
}

TEST(ThinkingSeal, OpensToWhatWasSealed) {
  for (const std::string& text : {std::string(), std::string("a"), std::string("ab"),
                                  std::string("abc"), std::string("\0\xFF\0", 3)}) {
    EXPECT_EQ(open_seal(seal_thinking(text)), text);
  }
  for (const char* foreign : {"", "EqQBCg==", "winnow1:?",
                              "winnow1:A===", "winnow1:====", "winnow1:AB=C", "winnow1: A="}) {
    EXPECT_EQ(open_seal(foreign), std::nullopt) << foreign;
  }
}

}  // namespace
}  // namespace winnow::server::testing
