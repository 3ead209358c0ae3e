// Every field of a request is honoured or refused by name (faults I2 and I4 of the field list).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "server/openai/chat_request.h"
#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

// I2: not-a-number parameters are a 400 that names the field, before anything is queued.
TEST(Fields, NonFiniteNumbersAre400NamingTheField) {
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

// I4: every documented field is honoured or refused by name; unknown ones are tolerated.
TEST(Fields, FieldsAreHonouredOrRefusedByName) {
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
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{}})",
       "response_format.json_schema.schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object",
          "properties":{"a":{"type":"integr"}}}}})",
       "response_format.json_schema.schema.properties.a.type"},
      {R"("response_format":{"type":"yaml"})", "response_format.type"},
      {R"("structured_outputs":{"regex":"(a"})", "structured_outputs.regex"},
      {R"("structured_outputs":{"regex":"a","choice":["a"]})", "structured_outputs.choice"},
      {R"("structured_outputs":{})", "structured_outputs.json"},
      {R"("structured_outputs":{"choice":[]})", "structured_outputs.choice"},
      {R"("structured_outputs":{"grammar":"root ::= nowhere"})", "structured_outputs.grammar"},
      {R"("structured_outputs":{"json":"{"})", "structured_outputs.json"},
      {R"("structured_outputs":{"json":{},"whitespace_pattern":"x"})",
       "structured_outputs.whitespace_pattern"},
      {R"("guided_json":{"type":7})", "guided_json.type"},
      {R"("guided_regex":"a","guided_choice":["a"])", "guided_choice"},
      {R"("tools":[])", "tools"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {R"("tool_choice":"auto")", "tool_choice"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",
          "properties":{"a":{"type":7}}}}}],"tool_choice":"required")",
       "tools[0].function.parameters.properties.a.type"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],
          "tool_choice":{"type":"function","function":{"name":"g"}})",
       "tool_choice.function.name"},
      {R"("tools":[{"type":"function","function":{"name":"f"}}],"structured_outputs":{"regex":"a"},
          "tool_choice":{"type":"function","function":{"name":"f"}})",
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
       {R"("misspelt_limit":5)",
        R"("user":"me","metadata":{},"store":true,"service_tier":"auto")",
        R"("response_format":{"type":"text"})",
        R"("logit_bias":{"65":200})",
        R"("response_format":{"type":"json_object"})",
        R"("guided_json":{})",
        R"("guided_choice":["a","b"])",
        R"("structured_outputs":{"regex":"a+"})",
        R"("structured_outputs":{"grammar":"start: \"a\"+"})",
        R"("structured_outputs":{"json":"{\"type\":\"string\"}","disable_any_whitespace":true})",
        R"("response_format":{"type":"structural_tag","structures":[{"begin":"<f>","schema":{},
            "end":"</f>"}],"triggers":["<f>"]})",
        R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")",
        R"("tools":[{"type":"function","function":{"name":"f","strict":true}}])",
        R"("tools":[{"type":"function","function":{"name":"f"}}],
            "response_format":{"type":"json_object"})",
        R"("tools":[{"type":"function","function":{"name":"f"}}])",
        R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")",
        R"("tool_choice":"none")",
        R"("temperature":null,"stop":null,"stream":null)",
        R"("chat_template_kwargs":{"enable_thinking":false})",
        R"("reasoning_effort":"none")",
        R"("stream_interval":4)",
        R"("modalities":["text"])",
        R"("n":1.0)"}) {
    const TestResponse response = server.post(kChat, chat(members));
    EXPECT_EQ(response.status, 200) << members << response.body;
  }
}

TEST(Fields, ListsHaveALargestLength) {
  TestServer server;
  const auto list = [](int count, int size) {
    std::string out = "[";
    for (int i = 0; i < count; ++i) out += (i > 0 ? ",\"" : "\"") + std::string(size, 'z') + '"';
    return out + "]";
  };
  const struct {
    const char* field;
    int count, size, status;
  } kLists[] = {
      {"stop", 64, 1, 200},    {"stop", 65, 1, 400},        {"stop", 4, 5000, 400},
      {"stop", 1, 16384, 200}, {"bad_words", 1024, 1, 200}, {"bad_words", 1025, 1, 400},
  };
  for (const auto& [field, count, size, status] : kLists) {
    const TestResponse response =
        server.post(kChat, chat(fmt::format(R"("{}":{})", field, list(count, size))));
    EXPECT_EQ(response.status, status) << field << " " << count << " × " << size << response.body;
    if (status == 400) {
      EXPECT_EQ(error_param(response), field);
    }
  }
}

TEST(Fields, SamplingFieldsReachTheEngine) {
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

TEST(Fields, DefaultsComeFromTheCheckpoint) {
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
TEST(Fields, ThinkingOfTheRequestWins) {
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

}  // namespace
}  // namespace winnow::server::testing
