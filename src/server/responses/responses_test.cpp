// /v1/responses over real sockets with a fake engine: shapes, event order, the store and its
// bounds, and how items become prompts.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "server/responses/response_store.h"
#include "server/testing/test_server.h"
#include "server/thinking_seal.h"

namespace winnow::server::testing {
namespace {

constexpr const char* kResponses = "/v1/responses";
constexpr const char* kCall =
    "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"look_up\">"
    "]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[</invoke>\n"
    "]<]minimax[>[</tool_call>";
constexpr const char* kTools =
    R"("tools":[{"type":"function","name":"look_up",
       "parameters":{"properties":{"city":{"type":"string"}}}}])";

std::string body(const std::string& members, const std::string& input = R"("Hi")") {
  return fmt::format(R"({{"input":{}{}{}}})", input, members.empty() ? "" : ",", members);
}

Json made(TestServer& server, const std::string& text, const std::string& headers = {}) {
  const TestResponse response = server.post(kResponses, text, headers);
  EXPECT_EQ(response.status, 200) << response.body;
  return Json::parse(response.body);
}

std::string id_of(const Json& response) { return response["id"].get<std::string>(); }

std::string last_prompt(TestServer& server) {
  std::string out;
  for (const TokenId token : server.engine().last_request().prompt) {
    out.push_back(static_cast<char>(token));
  }
  return out;
}

std::string request_line(const char* method, const std::string& path,
                         const std::string& headers = {}) {
  return fmt::format("{} {} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n{}\r\n", method, path,
                     headers);
}

TEST(Responses, AnswerInFull) {
  TestServer server;
  const Json response =
      made(server, body(R"("metadata":{"k":"v"},"instructions":"Be terse.","top_p":0.9)"),
           "X-Request-Id: chosen\r\n");
  EXPECT_EQ(response["top_p"], 0.9);
  EXPECT_EQ(id_of(response).find("chosen"), std::string::npos);
  EXPECT_TRUE(id_of(response).starts_with("resp_"));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"].size(), 1U);
  EXPECT_EQ(response["output"][0]["type"], "message");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hello, world");
  EXPECT_EQ(response["usage"]["output_tokens"], 13);
  EXPECT_EQ(response["metadata"], (Json{{"k", "v"}}));
  EXPECT_EQ(response["instructions"], "Be terse.");
  EXPECT_EQ(response["tool_choice"], "auto");
  EXPECT_TRUE(response["incomplete_details"].is_null());
  EXPECT_EQ(last_prompt(server), "developer: Be terse.\nuser: Hi\nassistant:");
}

TEST(Responses, StreamHasEveryEventInOrder) {
  TestServerOptions options;
  options.answer = std::string("<mm:think>hm</mm:think>Look.") + kCall;
  TestServer server(options);
  const TestResponse response =
      server.post(kResponses, body(std::string(R"("stream":true,)") + kTools));
  const std::vector<Json> events = parse_events(response.body);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    const std::string type = events[i]["type"].get<std::string>();
    if (names.empty() || names.back() != type || !type.ends_with(".delta")) names.push_back(type);
  }
  const std::vector<std::string> expected = {"response.created",
                                             "response.in_progress",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.reasoning_text.delta",
                                             "response.reasoning_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.content_part.added",
                                             "response.output_text.delta",
                                             "response.output_text.done",
                                             "response.content_part.done",
                                             "response.output_item.done",
                                             "response.output_item.added",
                                             "response.function_call_arguments.delta",
                                             "response.function_call_arguments.done",
                                             "response.output_item.done",
                                             "response.completed"};
  EXPECT_EQ(names, expected);
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  const Json& whole = events.back()["response"];
  ASSERT_EQ(whole["output"].size(), 3U);
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(whole["output"][1]["content"][0]["text"], "Look.");
  EXPECT_EQ(whole["output"][2]["name"], "look_up");
  EXPECT_EQ(Json::parse(whole["output"][2]["arguments"].get<std::string>()),
            (Json{{"city", "Paris"}}));
  // The stored object is the streamed one.
  EXPECT_EQ(Json::parse(server.get(fmt::format("{}/{}", kResponses, id_of(whole))).body), whole);
}

TEST(Responses, ArgumentsStreamAsTheyAreWritten) {
  TestServerOptions options;
  options.answer = kCall;
  TestServer server(options);
  std::string arguments;
  int num_deltas = 0;
  for (const Json& event : parse_events(
           server.post(kResponses, body(std::string(R"("stream":true,)") + kTools)).body)) {
    if (event["type"] == "response.function_call_arguments.delta") {
      arguments += event["delta"].get<std::string>();
      ++num_deltas;
    }
    if (event["type"] == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], arguments);
    }
  }
  EXPECT_EQ(arguments, R"({"city":"Paris"})");
  EXPECT_GT(num_deltas, 5);
}

// It never was a call: the conversation goes on without it and needs no output of it.
TEST(Responses, ACallThatWasCutIsIncompleteAndLeftOut) {
  TestServerOptions options;
  options.answer = std::string("Look.") + kCall;
  TestServer server(options);
  const std::size_t cut = std::string_view(kCall).find("ris]") + 5;
  const std::vector<Json> events = parse_events(
      server
          .post(kResponses,
                body(fmt::format(R"("stream":true,"max_output_tokens":{},{})", cut, kTools)))
          .body);
  const Json& whole = events.back()["response"];
  EXPECT_EQ(whole["status"], "incomplete");
  ASSERT_EQ(whole["output"].size(), 2U) << whole;
  EXPECT_EQ(whole["output"][1]["status"], "incomplete");
  EXPECT_EQ(whole["output"][1]["arguments"], R"({"city":"Pa)");
  made(server, body(fmt::format(R"("previous_response_id":"{}")", id_of(whole)), R"("Go on")"));
  EXPECT_EQ(last_prompt(server), "user: Hi\nassistant: Look.\nuser: Go on\nassistant:");
  // An output that somebody sends all the same belongs to nothing.
  const std::string input = fmt::format(
      R"([{{"role":"user","content":"Hi"}},{},{{"type":"function_call_output",
          "call_id":{},"output":"x"}},{{"role":"user","content":"So"}}])",
      whole["output"][1].dump(), whole["output"][1]["call_id"].dump());
  made(server, body("", input));
  EXPECT_EQ(last_prompt(server), "user: Hi\nuser: So\nassistant:");
}

TEST(Responses, AConversationGoesOnFromAStoredOne) {
  TestServer server;
  const std::string first = id_of(made(server, body("")));
  const std::string second =
      id_of(made(server, body(fmt::format(R"("previous_response_id":"{}")", first), R"("More")")));
  EXPECT_EQ(last_prompt(server), "user: Hi\nassistant: Hello, world\nuser: More\nassistant:");
  // Two go on from the same one; instructions are not carried over.
  made(server,
       body(fmt::format(R"("previous_response_id":"{}","instructions":"X")", first), R"("Other")"));
  EXPECT_EQ(last_prompt(server),
            "developer: X\nuser: Hi\nassistant: Hello, world\nuser: Other\nassistant:");
  // Deleting the middle of a chain leaves its end whole.
  const std::string third =
      id_of(made(server, body(fmt::format(R"("previous_response_id":"{}")", second), R"("End")")));
  const TestResponse deleted =
      server.send_raw(request_line("DELETE", fmt::format("{}/{}", kResponses, second)));
  EXPECT_EQ(Json::parse(deleted.body)["deleted"], true) << deleted.body;
  made(server, body(fmt::format(R"("previous_response_id":"{}")", third), R"("!")"));
  EXPECT_EQ(last_prompt(server),
            "user: Hi\nassistant: Hello, world\nuser: More\nassistant: Hello, world\n"
            "user: End\nassistant: Hello, world\nuser: !\nassistant:");
  const TestResponse gone = server.post(
      kResponses, body(fmt::format(R"("previous_response_id":"{}")", second), R"("x")"));
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(error_param(gone), "previous_response_id");
}

TEST(Responses, ItemsBecomeChatMessages) {
  TestServer server;
  made(server, body(kTools, R"([
    {"role":"user","content":[{"type":"input_text","text":"Weather?"}]},
    {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Looking."}]},
    {"type":"function_call","call_id":"a","name":"look_up","arguments":"{\"city\":\"Paris\"}"},
    {"type":"function_call","call_id":"b","name":"look_up","arguments":"{}"},
    {"type":"function_call_output","call_id":"b","output":"B"},
    {"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"A"}]},
    {"role":"user","content":"So?"}])"));
  EXPECT_EQ(last_prompt(server),
            "user: Weather?\nassistant: Looking.\ntool: A\ntool: B\nuser: So?\nassistant:");
}

TEST(Responses, SealedReasoningComesBack) {
  TestServerOptions options;
  options.answer = "<mm:think>plan</mm:think>Done.";
  TestServer server(options);
  const Json response =
      made(server, body(R"("store":false,"include":["reasoning.encrypted_content"])"));
  EXPECT_EQ(open_seal(response["output"][0]["encrypted_content"].get<std::string>()), "plan");
  EXPECT_GE(response["usage"]["output_tokens_details"]["reasoning_tokens"], 4);
  EXPECT_EQ(server.get(fmt::format("{}/{}", kResponses, id_of(response))).status, 404);
}

TEST(Responses, CallersSeeTheirOwnOnly) {
  TestServer server;
  const std::string mine = "Authorization: Bearer mine\r\n";
  const std::string theirs = "Authorization: Bearer theirs\r\n";
  const std::string id = id_of(made(server, body(""), mine));
  const std::string path = fmt::format("{}/{}", kResponses, id);
  EXPECT_EQ(server.get(path, mine).status, 200);
  EXPECT_EQ(server.get(path, theirs).status, 404);
  EXPECT_EQ(server.get(path).status, 404);
  EXPECT_EQ(server.send_raw(request_line("DELETE", path, theirs)).status, 404);
  EXPECT_EQ(server.send_raw(request_line("POST", path + "/cancel", theirs)).status, 404);
  EXPECT_EQ(server.post(kResponses, body(fmt::format(R"("previous_response_id":"{}")", id)), theirs)
                .status,
            404);
  EXPECT_EQ(server.send_raw(request_line("DELETE", path, mine)).status, 200);
  EXPECT_EQ(server.get(path, mine).status, 404);
}

TEST(Responses, InputItemsAreListed) {
  TestServer server;
  const std::string id = id_of(made(server, body("")));
  const Json list = Json::parse(server.get(fmt::format("{}/{}/input_items", kResponses, id)).body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["content"][0]["text"], "Hi");
  EXPECT_EQ(server.get(fmt::format("{}/{}/other", kResponses, id)).status, 404);
}

TEST(Responses, BackgroundOnesRunWithoutAClientAndCanBeCancelled) {
  TestServerOptions options;
  options.engine.hold = true;
  TestServer server(options);
  const Json queued = made(server, body(R"("background":true)"));
  EXPECT_EQ(queued["status"], "queued");
  const std::string path = fmt::format("{}/{}", kResponses, id_of(queued));
  const auto status_of = [&server](const std::string& at) {
    return Json::parse(server.get(at).body)["status"].get<std::string>();
  };
  const auto wait_for = [&status_of](const std::string& at, const std::string& wanted) {
    for (int i = 0; i < 1000 && status_of(at) != wanted; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return status_of(at);
  };
  const std::string cancelled_path =
      fmt::format("{}/{}", kResponses, id_of(made(server, body(R"("background":true)"))));
  const TestResponse cancelled = server.send_raw(request_line("POST", cancelled_path + "/cancel"));
  EXPECT_EQ(Json::parse(cancelled.body)["status"], "cancelled") << cancelled.body;
  EXPECT_EQ(wait_for(cancelled_path, "cancelled"), "cancelled");
  EXPECT_EQ(server.engine().num_aborted(), 1);
  server.engine().release();
  EXPECT_EQ(wait_for(path, "completed"), "completed");
  EXPECT_EQ(Json::parse(server.get(path).body)["output"][0]["content"][0]["text"], "Hello, world");
  // Cancelling what has ended changes nothing.
  EXPECT_EQ(Json::parse(server.send_raw(request_line("POST", path + "/cancel")).body)["status"],
            "completed");
}

TEST(Responses, LogprobsAreValidJsonAlways) {
  TestServer server;
  for (const char* stream : {"false", "true"}) {
    const TestResponse response =
        server.post(kResponses, body(fmt::format(R"("top_logprobs":2,"stream":{})", stream)));
    EXPECT_NE(response.body.find("\"logprob\":-9999.0"), std::string::npos) << response.body;
    EXPECT_EQ(response.body.find("\"logprob\":null"), std::string::npos);
  }
}

TEST(Responses, AnEmptyTextIsServed) {
  TestServer server;
  made(server, body("", R"("")"));
  EXPECT_EQ(last_prompt(server), "user: \nassistant:");
}

TEST(Responses, AClientThatGoesAwayLeavesNothingBehind) {
  TestServerOptions options;
  options.engine.hold = true;
  TestServer server(options);
  const std::string text = body(R"("stream":true)");
  const int socket = server.connect();
  send_all(socket, fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                               "Content-Length: {}\r\n\r\n{}",
                               kResponses, text.size(), text));
  std::string stream;
  while (stream.find("\"status\"") == std::string::npos) {
    char piece[512];
    const ssize_t count = ::recv(socket, piece, sizeof(piece), 0);
    ASSERT_GT(count, 0);
    stream.append(piece, static_cast<std::size_t>(count));
  }
  const std::size_t at = stream.find("resp_");
  const std::string path = fmt::format("{}/{}", kResponses, stream.substr(at, 37));
  EXPECT_EQ(server.get(path).status, 200);
  ::close(socket);
  for (int i = 0; i < 1000 && server.get(path).status == 200; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(server.get(path).status, 404);
  EXPECT_EQ(server.engine().num_aborted(), 1);
}

TEST(Responses, LimitsEndThemIncomplete) {
  TestServer server;
  const Json response = made(server, body(R"("max_output_tokens":3)"));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  const TestResponse stream =
      server.post(kResponses, body(R"("max_output_tokens":3,"stream":true)"));
  EXPECT_EQ(parse_events(stream.body).back()["type"], "response.incomplete");
}

TEST(Responses, TruncationDropsTheOldestTurns) {
  TestServer server;
  std::string items;
  for (int i = 0; i < 6; ++i) {
    items += fmt::format(R"({{"role":"user","content":"{}{}"}},)", i, std::string(999, 'x'));
  }
  const std::string input = "[" + items + R"({"role":"user","content":"last"}])";
  EXPECT_EQ(server.post(kResponses, body(R"("instructions":"Keep.")", input)).status, 400);
  made(server, body(R"("instructions":"Keep.","truncation":"auto")", input));
  const std::string prompt = last_prompt(server);
  EXPECT_TRUE(prompt.starts_with("developer: Keep.\nuser: 3xxx")) << prompt.substr(0, 60);
  EXPECT_TRUE(prompt.ends_with("user: last\nassistant:"));
}

TEST(Responses, FailuresAreToldInTheStreamAndStored) {
  TestServerOptions options;
  options.engine.fail_steps = true;
  TestServer server(options);
  TestResponse stream = server.post(kResponses, body(R"("stream":true)"));
  for (int i = 0; i < 100 && stream.status == 500; ++i) {  // failed before the stream had begun
    stream = server.post(kResponses, body(R"("stream":true)"));
  }
  ASSERT_EQ(stream.status, 200) << stream.body;
  const Json last = parse_events(stream.body).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  const std::string id = id_of(last["response"]);
  EXPECT_EQ(Json::parse(server.get(fmt::format("{}/{}", kResponses, id)).body)["error"]["message"],
            "the step failed");
  EXPECT_EQ(server.post(kResponses, body(fmt::format(R"("previous_response_id":"{}")", id))).status,
            400);
  EXPECT_EQ(server.post(kResponses, body("")).status, 500);
}

TEST(Responses, RefusalsNameTheirFields) {
  TestServer server;
  struct Refusal {
    const char* members;
    const char* input;
    const char* param;
  };
  const Refusal refusals[] = {
      {"", "null", "input"},
      {"", "5", "input"},
      {"", "[]", "input"},
      {"", R"([{"role":"king","content":"x"}])", "input[0].role"},
      {"", R"([{"type":"web_search_call"}])", "input[0].type"},
      {"", R"([{"type":"item_reference","id":"x"}])", "input[0].type"},
      {"", R"([{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].type"},
      {"", R"([{"role":"user","content":"x"},
               {"type":"function_call_output","call_id":"a","output":"x"}])",
       "input[1].call_id"},
      {"", R"([{"role":"user","content":"x"},
               {"type":"function_call","call_id":"a","name":"f","arguments":"{}"}])",
       "input"},
      {R"("tools":[{"type":"web_search"}])", R"("x")", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", R"("x")", "tools[0].name"},
      {R"("tool_choice":{"type":"file_search"})", R"("x")", "tool_choice.type"},
      {R"("tool_choice":"required")", R"("x")", "tool_choice"},
      {R"("max_output_tokens":0)", R"("x")", "max_output_tokens"},
      {R"("temperature":Infinity)", R"("x")", "temperature"},
      {R"("top_p":"nan")", R"("x")", "top_p"},
      {R"("reasoning":{"effort":"huge"})", R"("x")", "reasoning.effort"},
      {R"("text":{"format":{"type":"xml"}})", R"("x")", "text.format.type"},
      {R"("truncation":"some")", R"("x")", "truncation"},
      {R"("include":["everything"])", R"("x")", "include"},
      {R"("background":true,"store":false)", R"("x")", "background"},
      {R"("prompt":{"id":"x"})", R"("x")", "prompt"},
      {R"("conversation":"x")", R"("x")", "conversation"},
      {R"("previous_response_id":5)", R"("x")", "previous_response_id"},
  };
  for (const Refusal& refusal : refusals) {
    const TestResponse response = server.post(kResponses, body(refusal.members, refusal.input));
    EXPECT_EQ(response.status, 400) << refusal.members << refusal.input;
    EXPECT_EQ(error_param(response), refusal.param) << response.body;
  }
  EXPECT_EQ(server.post(kResponses, body("")).status, 200);
}

TEST(ResponseStore, StaysWithinItsBounds) {
  ResponseStore store({.max_responses = 10, .max_bytes = 100'000});
  const auto put = [&store](const std::string& id, std::size_t num_bytes,
                            std::shared_ptr<const ConversationTurn> before) {
    store.begin({.id = id, .caller = "c", .body = "{}", .turn = nullptr, .stop = nullptr});
    auto turn = std::make_shared<const ConversationTurn>(
        std::move(before), "[\"" + std::string(num_bytes, 'x') + "\"]", "[]", store.turn_bytes());
    store.finish(id, "{\"done\":1}", turn);
    return turn;
  };
  for (int i = 0; i < 30; ++i) put(fmt::format("r{}", i), 10, nullptr);
  EXPECT_EQ(store.num_responses(), 10);
  EXPECT_FALSE(store.find("r19", "c"));
  EXPECT_TRUE(store.find("r20", "c"));  // and is the newest now
  put("r30", 10, nullptr);
  EXPECT_TRUE(store.find("r20", "c"));
  EXPECT_FALSE(store.find("r21", "c"));
  for (int i = 0; i < 30; ++i) {
    put(fmt::format("large{}", i), 30'000, nullptr);
    EXPECT_LE(store.num_bytes(), 100'000);
  }
  EXPECT_LE(store.num_responses(), 3);
  // A chain's shared turns count once, and go when its last response goes.
  std::shared_ptr<const ConversationTurn> last;
  for (int i = 0; i < 100'000; ++i) {
    last = std::make_shared<const ConversationTurn>(last, "[]", "[]", store.turn_bytes());
  }
  EXPECT_GT(store.num_bytes(), 100'000);
  last.reset();  // one by one, not 100,000 destructors deep
  EXPECT_LE(store.num_bytes(), 100'000);
  ResponseStore none({.max_responses = 0});
  none.begin({.id = "a", .caller = "c", .body = "{}", .turn = nullptr, .stop = nullptr});
  EXPECT_EQ(none.num_responses(), 0);
  EXPECT_EQ(none.num_bytes(), 0);
}

TEST(ResponseStore, ForgetsTheOld) {
  ResponseStore store({.max_age = std::chrono::seconds(0)});
  store.begin({.id = "a", .caller = "c", .body = "{}", .turn = nullptr, .stop = nullptr});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_FALSE(store.find("a", "c"));
}

}  // namespace
}  // namespace winnow::server::testing
