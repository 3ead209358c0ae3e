// The OpenAI routes over real sockets with a fake engine: shapes, fields honoured or refused by
// name, streaming. The faults H4 and I1 to I5 of the field list are tests here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "server/openai/chat_request.h"
#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";

/// A chat body with more members.
std::string chat(const std::string& members = {}) {
  return R"({"messages":[{"role":"user","content":"Hi"}])" +
         (members.empty() ? "" : "," + members) + "}";
}

std::string error_param(const TestResponse& response) {
  const Json error = Json::parse(response.body)["error"];
  return error["param"].is_null() ? "" : error["param"].get<std::string>();
}

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
  ASSERT_GE(events.size(), 4U);
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

// I2: not-a-number parameters are a 400 that names the field, before anything is queued.
TEST(Api, NonFiniteNumbersAre400NamingTheField) {
  TestServer server;
  for (const char* field : {"temperature", "top_p", "min_p", "repetition_penalty",
                            "presence_penalty", "frequency_penalty"}) {
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999", "\"nan\"", "true",
                              "\"0.5\"", "[1]", "{}"}) {
      const TestResponse response =
          server.post(kChat, chat(fmt::format(R"("{}":{})", field, value)));
      EXPECT_EQ(response.status, 400) << field << " " << value;
      EXPECT_EQ(error_param(response), field) << value << response.body;
    }
  }
  EXPECT_EQ(server.engine().stats().prompt_tokens, 0);
  EXPECT_EQ(server.post(kChat, chat()).status, 200);
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

// I4: every documented field is honoured or refused by name; unknown ones are tolerated.
TEST(Api, FieldsAreHonouredOrRefusedByName) {
  TestServer server;
  const struct {
    const char* members;
    const char* param;
  } kRefused[] = {
      {R"("temperature":-1)", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.5)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("min_p":2)", "min_p"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":-3)", "frequency_penalty"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":"2")", "n"},
      {R"("seed":1e30)", "seed"},
      {R"("seed":18446744073709551615)", "seed"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":"many")", "max_tokens"},
      {R"("max_tokens":4,"min_tokens":5)", "min_tokens"},
      {R"("max_tokens":5000)", "max_tokens"},
      {R"("stop":[""])", "stop"},
      {R"("stop":3)", "stop"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":[999999])", "stop_token_ids"},
      {R"("allowed_token_ids":[])", "allowed_token_ids"},
      {R"("allowed_token_ids":[300])", "allowed_token_ids"},
      {R"("bad_words":[""])", "bad_words"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"999999":1})", "logit_bias"},
      {R"("logit_bias":{"1":"x"})", "logit_bias"},
      {R"("logprobs":5)", "logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":-2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":"x")", "top_logprobs"},
      {R"("logprob_token_ids":[1])", "logprob_token_ids"},
      {R"("prompt_logprobs":2,"stream":true)", "prompt_logprobs"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
      {R"("stream_interval":0)", "stream_interval"},
      {R"("response_format":{"type":"json_object"})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{}})", "response_format"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("structured_outputs":{"regex":"a"})", "structured_outputs"},
      {R"("guided_json":{})", "guided_json"},
      {R"("tools":[])", "tools"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tool_choice":"auto")", "tool_choice"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")",
       "tool_choice"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"maybe")",
       "tool_choice"},
      {R"("reasoning_effort":"extreme")", "reasoning_effort"},
      {R"("thinking_token_budget":5)", "thinking_token_budget"},
      {R"("include_reasoning":"no")", "include_reasoning"},
      {R"("chat_template":"x")", "chat_template"},
      {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs"},
      {R"("chat_template_kwargs":{"thinking_mode":"maybe"})", "chat_template_kwargs.thinking_mode"},
      {R"("add_generation_prompt":true,"continue_final_message":true)", "continue_final_message"},
      {R"("continue_final_message":true)", "continue_final_message"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
      {R"("truncation_side":"middle")", "truncation_side"},
      {R"("priority":1)", "priority"},
      {R"("cache_salt":"")", "cache_salt"},
      {R"("cache_salt":"a/b")", "cache_salt"},
      {R"("kv_transfer_params":{})", "kv_transfer_params"},
      {R"("mm_processor_kwargs":{})", "mm_processor_kwargs"},
      {R"("repetition_detection":{})", "repetition_detection"},
      {R"("use_beam_search":true)", "use_beam_search"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("audio":{})", "audio"},
      {R"("functions":[])", "functions"},
  };
  for (const auto& row : kRefused) {
    const TestResponse response = server.post(kChat, chat(row.members));
    EXPECT_EQ(response.status, 400) << row.members << response.body;
    EXPECT_EQ(error_param(response), row.param) << row.members << response.body;
  }
  for (const char* members :
       {R"("misspelt_limit":5)", R"("user":"me","metadata":{},"store":true,"service_tier":"auto")",
        R"("response_format":{"type":"text"})", R"("logit_bias":{"65":200})",
        R"("tools":[{"type":"function","function":{"name":"f"}}])",
        R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")",
        R"("tool_choice":"none")", R"("temperature":null,"stop":null,"stream":null)",
        R"("chat_template_kwargs":{"enable_thinking":false})", R"("reasoning_effort":"none")",
        R"("stream_interval":4)", R"("modalities":["text"])", R"("n":1.0)"}) {
    const TestResponse response = server.post(kChat, chat(members));
    EXPECT_EQ(response.status, 200) << members << response.body;
  }
}

TEST(Api, SamplingFieldsReachTheEngine) {
  TestServer server;
  server.post(kChat, chat(R"("temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"seed":42,
      "presence_penalty":0.5,"frequency_penalty":-0.5,"repetition_penalty":1.5,"ignore_eos":false,
      "logit_bias":{"65":200},"allowed_token_ids":[72,101],"bad_words":["no"],"max_tokens":2,
      "min_tokens":1,"session_id":"s","cache_salt":"salt","timeout_ms":5000)"));
  const GenerationRequest request = server.engine().last_request();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.seed, 42);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.5F);
  EXPECT_FLOAT_EQ(request.sampling.logit_bias.at(0).second, 100.0F);
  EXPECT_EQ(request.sampling.allowed_token_ids.size(), 2U);
  EXPECT_EQ(request.sampling.bad_words.size(), 2U);  // alone and after a blank
  EXPECT_EQ(request.sampling.max_tokens, 2);
  EXPECT_EQ(request.cache_salt, "salt");
  EXPECT_EQ(request.fairness_key, "session s");
  EXPECT_TRUE(request.deadline.has_value());
}

TEST(Api, DefaultsComeFromTheCheckpoint) {
  TestServerOptions options;
  options.defaults = {.temperature = 0.25,
                      .top_p = 0.75,
                      .min_p = {},
                      .repetition_penalty = {},
                      .top_k = 40,
                      .max_new_tokens = {}};
  TestServer server(options);
  server.post(kChat, chat(R"("top_k":5)"));
  const GenerationRequest request = server.engine().last_request();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.25F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.75F);
  EXPECT_EQ(request.sampling.top_k, 5);
  EXPECT_EQ(request.sampling.max_tokens, 4096 - 19);
}

// Any word of the request about thinking beats the server's default.
TEST(Api, ThinkingOfTheRequestWins) {
  const auto mode = [](const std::string& members, const char* server_default) {
    RequestPolicy policy;
    if (server_default != nullptr)
      policy.default_chat_template_kwargs = Json::parse(server_default);
    return template_variables(read_chat_request(Json::parse(chat(members)), policy, {}))
        .value("thinking_mode", std::string("undefined"));
  };
  EXPECT_EQ(mode("", nullptr), "undefined");
  EXPECT_EQ(mode("", "{}"), "undefined");
  EXPECT_EQ(mode("", R"({"enable_thinking":true})"), "enabled");
  EXPECT_EQ(mode(R"("enable_thinking":false)", R"({"thinking_mode":"enabled"})"), "disabled");
  EXPECT_EQ(mode(R"("reasoning_effort":"low")", nullptr), "enabled");
  EXPECT_EQ(mode(R"("thinking":{"type":"adaptive"})", nullptr), "adaptive");
  EXPECT_EQ(mode(R"("chat_template_kwargs":{"thinking":true})", nullptr), "enabled");
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
  options.app.echo_request_id = true;
  TestServer server(options);
  const TestResponse response = server.post(kChat, chat(), "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(Json::parse(response.body)["id"], "chatcmpl-abc-1");
  EXPECT_EQ(response.header("X-Request-Id"), "abc-1");
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
