// The OpenAI routes over real sockets with a fake engine: shapes, streaming, the faults H4, I1, I3
// and I5 of the field list. Fields of requests: api_fields_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

constexpr const char* kCompletions = "/v1/completions";

TEST(Api, ChatAnswersInFull) {
  TestServer server;
  const TestResponse response = server.post(kChat, chat());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json body = Json::parse(response.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello, world");
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], 19);  // "user: Hi\nassistant:"
  EXPECT_EQ(body["usage"]["completion_tokens"], 13);
  EXPECT_EQ(body["usage"]["total_tokens"], 32);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(body["system_fingerprint"], "winnow-test");
}

TEST(Api, ChatStreamsRoleDeltasFinishAndUsage) {
  TestServer server;
  const TestResponse response =
      server.post(kChat, chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(response.header("Cache-Control"), "no-cache");
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  const std::vector<Json> events = parse_events(response.body);
  ASSERT_GE(events.size(), 3U);  // a slow reader gets the deltas as one
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(events.front()["choices"][0]["delta"]["content"], "");
  std::string text;
  int num_finished = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events.front()["id"]);
    if (event["choices"].empty()) continue;
    EXPECT_TRUE(event["usage"].is_null());
    text += event["choices"][0]["delta"].value("content", "");
    num_finished += event["choices"][0]["finish_reason"].is_null() ? 0 : 1;
  }
  EXPECT_EQ(text, "Hello, world");
  EXPECT_EQ(num_finished, 1);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 13);
}

TEST(Api, StreamedCharactersAreNeverSplit) {
  TestServerOptions options;
  options.answer = "h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80!";
  TestServer server(options);
  const TestResponse response =
      server.post(kChat, chat(R"("stream":true,"logprobs":true,"return_token_ids":true)"));
  std::string text;
  std::size_t num_tokens = 0;
  std::size_t num_logprobs = 0;
  for (const Json& event : parse_events(response.body)) {
    const Json& choice = event["choices"][0];
    text += choice["delta"].value("content", "");
    if (choice.contains("token_ids")) num_tokens += choice["token_ids"].size();
    if (!choice["logprobs"].is_null()) num_logprobs += choice["logprobs"]["content"].size();
  }
  EXPECT_EQ(text, options.answer);
  EXPECT_EQ(num_tokens, options.answer.size() + 1);  // bytes and eos
  EXPECT_EQ(num_logprobs, num_tokens);
}

TEST(Api, ChoicesInterleaveAndEachEndsOnce) {
  TestServer server;
  const Json whole = Json::parse(server.post(kChat, chat(R"("n":3)")).body);
  ASSERT_EQ(whole["choices"].size(), 3U);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 19);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 39);
  const TestResponse response = server.post(kChat, chat(R"("n":3,"stream":true)"));
  std::string texts[3];
  int ends[3] = {};
  for (const Json& event : parse_events(response.body)) {
    const Json& choice = event["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    texts[index] += choice["delta"].value("content", "");
    ends[index] += choice["finish_reason"].is_null() ? 0 : 1;
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], "Hello, world");
    EXPECT_EQ(ends[i], 1);
  }
}

TEST(Api, StopStringsCutTheTextAndAreReported) {
  TestServer server;
  Json body = Json::parse(server.post(kChat, chat(R"("stop":["o, w"])")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hell");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "o, w");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);  // up to the match
  body = Json::parse(
      server.post(kChat, chat(R"("stop":"wor","include_stop_str_in_output":true)")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello, wor");
  body = Json::parse(server.post(kChat, chat(R"("stop":"lo","min_tokens":6)")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello, world");
  // Held-back text is not lost when no stop string follows.
  const TestResponse response = server.post(kChat, chat(R"("stop":["world!"],"stream":true)"));
  std::string text;
  for (const Json& event : parse_events(response.body)) {
    text += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "Hello, world");
}

// H4: stop strings apply to the answer, not to the thinking before it.
TEST(Api, StopStringsInTheThinkingDoNotEndTheAnswer) {
  TestServerOptions options;
  options.answer = "<mm:think>one STOP two</mm:think>three STOP four";
  TestServer server(options);
  const Json body = Json::parse(server.post(kChat, chat(R"("stop":"STOP")")).body);
  const Json& message = body["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "one STOP two");
  EXPECT_EQ(message["reasoning_content"], "one STOP two");
  EXPECT_EQ(message["content"], "three ");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "STOP");
  EXPECT_GT(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  std::string reasoning;
  std::string text;
  for (const Json& event :
       parse_events(server.post(kChat, chat(R"("stop":"STOP","stream":true)")).body)) {
    reasoning += event["choices"][0]["delta"].value("reasoning", "");
    text += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(reasoning, "one STOP two");
  EXPECT_EQ(text, "three ");
}

const std::string kNs = "]<]minimax[>[";
const std::string kTwoCalls = "Wait." + kNs + "<tool_call>\n" + kNs + "<invoke name=\"add\">" +
                              kNs + "<a>2" + kNs + "</a>" + kNs + "</invoke>\n" + kNs +
                              "<invoke name=\"add\">" + kNs + "<a>3" + kNs + "</a>" + kNs +
                              "</invoke>\n" + kNs + "</tool_call>";
constexpr const char* kAddTool =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",
    "properties":{"a":{"type":"integer"}}}}}])";

TEST(Api, ToolCallsComeOutOfTheAnswer) {
  TestServerOptions options;
  options.answer = "<mm:think>sum</mm:think>" + kTwoCalls;
  TestServer server(options);
  const Json choice = Json::parse(server.post(kChat, chat(kAddTool)).body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "Wait.");
  EXPECT_EQ(choice["message"]["reasoning"], "sum");
  const Json& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[1]["type"], "function");
  EXPECT_EQ(calls[1]["function"], (Json{{"name", "add"}, {"arguments", R"({"a":3})"}}));
  EXPECT_TRUE(calls[0]["id"].get<std::string>().starts_with("call_"));
  EXPECT_NE(calls[0]["id"], calls[1]["id"]);

  std::vector<Json> streamed;  // what a client makes of the pieces
  std::string finish;
  int num_pieces = 0;
  for (const Json& event :
       parse_events(server.post(kChat, chat(std::string(kAddTool) + R"(,"stream":true)")).body)) {
    const Json& part = event["choices"][0];
    for (const Json& piece : part["delta"].value("tool_calls", Json::array())) {
      ++num_pieces;
      const auto index = piece["index"].get<std::size_t>();
      if (index == streamed.size()) {
        EXPECT_TRUE(piece["id"].get<std::string>().starts_with("call_"));
        streamed.push_back(piece["function"]);
        continue;
      }
      ASSERT_EQ(index + 1, streamed.size());
      EXPECT_FALSE(piece.contains("id"));
      streamed.back()["arguments"].get_ref<std::string&>() +=
          piece["function"]["arguments"].get<std::string>();
    }
    if (part["finish_reason"].is_string()) finish = part["finish_reason"];
  }
  ASSERT_EQ(streamed.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(streamed[i], calls[i]["function"]);
  EXPECT_GT(num_pieces, 4);
  EXPECT_EQ(finish, "tool_calls");
}

TEST(Api, OneCallAtATimeEndsTheAnswer) {
  TestServerOptions options;
  options.answer = kTwoCalls;
  TestServer server(options);
  const std::string members = std::string(kAddTool) + R"(,"parallel_tool_calls":false)";
  const Json body = Json::parse(server.post(kChat, chat(members)).body);
  EXPECT_EQ(body["choices"][0]["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_LT(body["usage"]["completion_tokens"], static_cast<int>(kTwoCalls.size()));
}

TEST(Api, CallsNobodyAskedForStayText) {
  TestServerOptions options;
  options.answer = kTwoCalls;
  TestServer server(options);
  for (const std::string& members :
       {std::string(R"("n":1)"), std::string(kAddTool) + R"(,"tool_choice":"none")"}) {
    const Json choice = Json::parse(server.post(kChat, chat(members)).body)["choices"][0];
    EXPECT_EQ(choice["message"]["content"], kTwoCalls);
    EXPECT_FALSE(choice["message"].contains("tool_calls"));
    EXPECT_EQ(choice["finish_reason"], "stop");
  }
}

// A call cut off by the length is dropped, and the reason is the length.
TEST(Api, ACallThatIsCutOffIsNoCall) {
  TestServerOptions options;
  options.answer = kTwoCalls;
  TestServer server(options);
  const std::string members = std::string(kAddTool) + R"(,"max_tokens":70)";
  const Json choice = Json::parse(server.post(kChat, chat(members)).body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Wait.");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST(Api, StopTokensAreReportedAsIds) {
  TestServer server;
  const Json body = Json::parse(server.post(kChat, chat(R"("stop_token_ids":[44])")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["stop_reason"], 44);
}

TEST(Api, LengthEndsWithLength) {
  TestServer server;
  const Json body = Json::parse(server.post(kChat, chat(R"("max_completion_tokens":3)")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hel");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

// I3: minus infinity has a documented floor; the reply is always valid JSON.
TEST(Api, LogprobsHaveBytesAndAFloor) {
  TestServer server;
  const Json body =
      Json::parse(server.post(kChat, chat(R"("logprobs":true,"top_logprobs":5)")).body);
  const Json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 13U);
  EXPECT_EQ(content[0]["token"], "H");
  EXPECT_EQ(content[0]["bytes"], Json::array({72}));
  EXPECT_EQ(content[0]["logprob"], -0.25);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 5U);
  EXPECT_EQ(content[0]["top_logprobs"][4]["logprob"], -9999.0);
  const Json ids = Json::parse(
      server.post(kChat, chat(R"("logprobs":true,"return_tokens_as_token_ids":true)")).body);
  EXPECT_EQ(ids["choices"][0]["logprobs"]["content"][0]["token"], "token_id:72");
}

// I1: nothing to do is answered or refused, and the server lives.
TEST(Api, EmptyPromptsAreRefusedOrServed) {
  TestServer server;
  for (const char* prompt : {R"("")", R"([""])", "[]", "[[]]", R"(["a",""])", "null"}) {
    const TestResponse response =
        server.post(kCompletions, fmt::format(R"({{"prompt":{}}})", prompt));
    EXPECT_EQ(response.status, 400) << prompt;
    EXPECT_EQ(error_param(response), "prompt") << prompt;
  }
  EXPECT_EQ(server.post(kCompletions, R"({"prompt":"","echo":true,"max_tokens":0})").status, 400);
  EXPECT_EQ(server.post(kChat, R"({"messages":[]})").status, 400);
  for (const char* content : {R"("")", "[]", "null"}) {
    const TestResponse response = server.post(
        kChat, fmt::format(R"({{"messages":[{{"role":"user","content":{}}}]}})", content));
    EXPECT_EQ(response.status, 200) << content;
  }
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Api, ContextLengthErrorsUseTheWordsClientsMatch) {
  TestServer server;
  const std::string longer(5000, 'a');
  const TestResponse response =
      server.post(kChat, R"({"messages":[{"role":"user","content":")" + longer + "\"}]}");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("maximum context length"), std::string::npos);
  EXPECT_EQ(
      server
          .post(kChat, R"({"truncate_prompt_tokens":-1,"messages":[{"role":"user","content":")" +
                           longer + "\"}]}")
          .status,
      200);
}

TEST(Api, ModelsAreListedAndUnknownOnesAre404) {
  TestServer server;
  const Json list = Json::parse(server.get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "test-model");
  EXPECT_EQ(list["data"][0]["max_model_len"], 4096);
  EXPECT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(server.get("/v1/models/alias").status, 200);
  EXPECT_EQ(server.get("/v1/models/other").status, 404);
  const TestResponse response = server.post(kChat, chat(R"("model":"other")"));
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(Json::parse(response.body)["error"]["type"], "NotFoundError");
  EXPECT_EQ(Json::parse(server.post(kChat, chat(R"("model":"alias")")).body)["model"], "alias");
}

TEST(Api, CompletionsTakeEveryPromptForm) {
  TestServer server;
  for (const char* prompt : {R"("ab")", R"(["ab"])", "[97,98]", "[[97,98]]"}) {
    const Json body = Json::parse(
        server.post(kCompletions, fmt::format(R"({{"prompt":{},"max_tokens":5}})", prompt)).body);
    EXPECT_EQ(body["choices"][0]["text"], "Hello") << prompt;
    EXPECT_EQ(body["usage"]["prompt_tokens"], 2) << prompt;
  }
  const Json batch =
      Json::parse(server.post(kCompletions, R"({"prompt":["a","bc"],"n":2,"max_tokens":1})").body);
  ASSERT_EQ(batch["choices"].size(), 4U);
  EXPECT_EQ(batch["choices"][3]["index"], 3);
  EXPECT_EQ(batch["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(batch["usage"]["completion_tokens"], 4);
  for (const char* prompt : {"[-1]", "[258]", "[1.5]", R"([1,"a"])", "{}", "[true]", "[[1],2]"}) {
    EXPECT_EQ(server.post(kCompletions, fmt::format(R"({{"prompt":{}}})", prompt)).status, 400)
        << prompt;
  }
  // The default of 16 tokens.
  const Json ignoring =
      Json::parse(server.post(kCompletions, R"({"prompt":"a","ignore_eos":true})").body);
  EXPECT_EQ(ignoring["usage"]["completion_tokens"], 16);
  EXPECT_EQ(ignoring["choices"][0]["finish_reason"], "length");
}

TEST(Api, CompletionsEchoWithLogprobs) {
  TestServer server;
  const Json body = Json::parse(
      server.post(kCompletions, R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":2})").body);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "abHe");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::array({"a", "b", "H", "e"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -0.5);
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::array({0, 1, 2, 3}));
  const Json scored = Json::parse(
      server.post(kCompletions, R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":0})").body);
  EXPECT_EQ(scored["choices"][0]["text"], "ab");
  EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), 2U);
  const TestResponse stream =
      server.post(kCompletions, R"({"prompt":"ab","echo":true,"max_tokens":2,"stream":true})");
  std::string text;
  for (const Json& event : parse_events(stream.body)) {
    text += event["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, "abHe");
}

TEST(Api, TokenizeAndBack) {
  TestServer server;
  const Json tokens =
      Json::parse(server.post("/tokenize", R"({"prompt":"a€","return_token_strs":true})").body);
  EXPECT_EQ(tokens["count"], 4);
  EXPECT_EQ(tokens["tokens"], Json::array({97, 0xE2, 0x82, 0xAC}));
  EXPECT_EQ(tokens["max_model_len"], 4096);
  EXPECT_EQ(tokens["token_strs"][0], "a");
  const Json chat_tokens = Json::parse(server.post("/v1/tokenize", chat()).body);
  EXPECT_EQ(chat_tokens["count"], 19);
  EXPECT_EQ(Json::parse(server.post("/detokenize", R"({"tokens":[97,98]})").body)["prompt"], "ab");
  EXPECT_EQ(server.post("/detokenize", R"({"tokens":[258]})").status, 400);
  EXPECT_EQ(server.post("/tokenize", "{}").status, 400);
}

// Marker strings in a message stay text; in a raw prompt they are tokens.
TEST(Api, MarkersInMessagesAreText) {
  TestServer server;
  const Json in_chat = Json::parse(
      server.post("/tokenize", R"({"messages":[{"role":"user","content":"[e~["}]})").body);
  for (const Json& token : in_chat["tokens"]) EXPECT_LT(token.get<int>(), 256);
  const Json raw = Json::parse(server.post("/tokenize", R"({"prompt":"[e~["})").body);
  EXPECT_EQ(raw["tokens"], Json::array({256}));
}

TEST(Api, EngineErrorsEndTheRequestOnly) {
  TestServerOptions options;
  options.engine.fail_steps = true;
  TestServer server(options);
  const TestResponse whole = server.post(kChat, chat());
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(Json::parse(whole.body)["error"]["type"], "InternalServerError");
  const TestResponse stream = server.post(kChat, chat(R"("stream":true)"));
  EXPECT_TRUE(stream.status == 500 || stream.body.find("\"error\"") != std::string::npos);
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Api, BrokenJsonIs400) {
  TestServer server;
  for (const std::string& body :
       {std::string("{"), std::string(""), std::string("[]"), std::string("null"),
        std::string("{\"messages\":\"\xFF\xFE\"}"), std::string(R"({"messages":"\ud800"})"),
        std::string(100'000, '['), R"({"a":)" + std::string(70, '[') + std::string(70, ']') + "}",
        std::string(R"({"messages":[{"role":"user"}],})")}) {
    const TestResponse response = server.post(kChat, body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 40);
    EXPECT_TRUE(Json::accept(response.body));
  }
}

TEST(Api, RequestIdsNameTheResponse) {
  TestServerOptions options;
  TestServer server(options);
  const TestResponse response = server.post(kChat, chat(), "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(Json::parse(response.body)["id"], "chatcmpl-abc-1");
  EXPECT_EQ(response.header("X-Request-Id"), "abc-1");
  // Without one the server makes one up, for errors and streams, too.
  const TestResponse other = server.post(kChat, chat());
  const std::string id = other.header("X-Request-Id");
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(Json::parse(other.body)["id"], "chatcmpl-" + id);
  EXPECT_NE(server.get("/nowhere").header("X-Request-Id"), "");
  EXPECT_EQ(
      server.post(kChat, chat(R"("stream":true)"), "X-Request-Id: a b\r\n").header("X-Request-Id"),
      "ab");
}

TEST(Api, TimesComeOnDemand) {
  TestServer server;
  EXPECT_FALSE(Json::parse(server.post(kChat, chat()).body).contains("metrics"));
  for (const bool by_header : {false, true}) {
    const TestResponse response =
        server.post(kChat, by_header ? chat() : chat(R"("return_metrics":true)"),
                    by_header ? "X-Return-Metrics: true\r\n" : "");
    const Json metrics = Json::parse(response.body)["metrics"];
    EXPECT_GE(metrics["queue_time_ms"], 0);
    const Json& attributes = metrics["attributes"];
    EXPECT_EQ(attributes["gen_ai.usage.completion_tokens"], 13);
    EXPECT_NEAR(attributes["gen_ai.latency.e2e"].get<double>(),
                attributes["gen_ai.latency.time_in_queue"].get<double>() +
                    attributes["gen_ai.latency.time_in_model_prefill"].get<double>() +
                    attributes["gen_ai.latency.time_in_model_decode"].get<double>(),
                1e-9);
    EXPECT_TRUE(response.header("Server-Timing").starts_with("queue;dur=")) << response.head;
  }
  // A stream tells them in the event of its usage, which it then has in any case.
  const auto events =
      parse_events(server.post(kChat, chat(R"("stream":true,"return_metrics":true)")).body);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 13);
  EXPECT_EQ(events.back()["metrics"]["attributes"]["gen_ai.usage.prompt_tokens"], 19);
  // Of several choices nobody could say whose they are.
  EXPECT_FALSE(Json::parse(server.post(kChat, chat(R"("n":2,"return_metrics":true)")).body)
                   .contains("metrics"));
}

// I5: counters add up and never fall.
TEST(Api, MetricsCountWhatHappened) {
  TestServer server;
  server.post(kChat, chat());
  server.post(kChat, chat(R"("max_tokens":2)"));
  const std::string text = server.get("/metrics").body;
  const std::string labels = R"({engine="0",model_name="test-model")";
  for (const std::string& line : std::initializer_list<std::string>{
           "vllm:prompt_tokens_total" + labels + "} 38",
           "vllm:generation_tokens_total" + labels + "} 15",
           "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"test-"
           "model\"} 1",
           "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"test-"
           "model\"} 1",
           "vllm:time_to_first_token_seconds_count" + labels + "} 2",
           "vllm:request_prompt_tokens_sum" + labels + "} 38",
           "vllm:num_requests_running" + labels + "} 0",
           "vllm:kv_cache_usage_perc" + labels + "} 0",
           std::string("vllm:cache_config_info{block_size=\"128\"")}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
}

TEST(Api, ThePageIsServed) {
  TestServer server;
  const TestResponse page = server.get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.body.find("<title>winnow</title>"), std::string::npos);
  EXPECT_NE(page.header("Content-Security-Policy"), "");
}

}  // namespace
}  // namespace winnow::server::testing
