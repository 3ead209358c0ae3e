// What the HTTP layer promises whatever is behind it: limits, broken input, keep-alive, drain.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

using std::chrono::milliseconds;

constexpr const char* kHello = R"({"messages":[{"role":"user","content":"Hi"}]})";

std::string chat_request(std::string_view body) {
  return "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

/// False after a minute and more: what is waited for takes its time on a busy machine.
bool wait_for(const std::function<bool()>& condition) {
  for (int i = 0; i < 12'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

TEST(Http, HealthNamesTheState) {
  TestServerOptions options;
  options.is_ready = false;
  TestServer server(options);
  EXPECT_EQ(server.get("/health").status, 503);
  EXPECT_EQ(server.get("/health/live").status, 200);
  const TestResponse early = server.post(kChat, kHello);
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(early.header("Retry-After"), "1");
  server.set_ready();
  EXPECT_EQ(server.get("/health").body, R"({"status":"ready"})");
  EXPECT_EQ(server.get("/ping").status, 200);
  server.app().start_draining();
  EXPECT_EQ(server.get("/health").status, 503);
  EXPECT_EQ(server.post(kChat, kHello).status, 503);
}

TEST(Http, UnknownRoutesAndMethodsSayWhatToDo) {
  TestServer server;
  const TestResponse missing = server.get("/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(Json::parse(missing.body)["error"]["code"], 404);
  for (const char* path : {"/v1/embeddings", "/v1/rerank", "/score", "/v1/audio/speech",
                           "/v1/images/generations", "/v1/moderations", "/pooling"}) {
    const TestResponse other = server.post(path, "{}");
    EXPECT_EQ(other.status, 404) << path;
    const Json error = Json::parse(other.body)["error"];
    EXPECT_EQ(error["type"], "NotFoundError");
    EXPECT_EQ(error["message"],
              fmt::format("{}: not served; this model generates text only", path));
  }
  const TestResponse wrong_method = server.get(kChat);
  EXPECT_EQ(wrong_method.status, 405);
  EXPECT_EQ(wrong_method.header("Allow"), "POST");
  const TestResponse head =
      server.send_raw("HEAD /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), "18");
  EXPECT_EQ(head.body, "");
}

TEST(Http, WrongContentTypeIs415) {
  TestServer server;
  const TestResponse response = server.send_raw(
      "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: text/plain\r\nContent-Length: "
      "2\r\n\r\n{}");
  EXPECT_EQ(response.status, 415);
}

TEST(Http, GarbageIs400AndTheServerLives) {
  TestServer server;
  for (const char* garbage :
       {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 more bytes of a handshake\r\n\r\n",
        "GET\r\n\r\n", "NOT HTTP AT ALL\r\n\r\n", "GET /%zz HTTP/1.1\r\nHost: t\r\n\r\n",
        "GET /a%00b HTTP/1.1\r\nHost: t\r\n\r\n", "GET no-slash HTTP/1.1\r\nHost: t\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    const TestResponse response = server.send_raw(garbage);
    EXPECT_GE(response.status, 400) << garbage;
    EXPECT_LT(response.status, 500) << garbage;
  }
  EXPECT_EQ(server.get("/health").status, 200);
}

TEST(Http, HugeHeadersAre431) {
  TestServer server;
  const TestResponse response =
      server.get("/health", "X-Filler: " + std::string(40'000, 'a') + "\r\n");
  EXPECT_EQ(response.status, 431);
}

TEST(Http, LargeBodiesAre413BothDeclaredAndChunked) {
  TestServerOptions options;
  options.http.max_body_bytes = 1000;
  TestServer server(options);
  EXPECT_EQ(server.post(kChat, std::string(2000, ' ')).status, 413);
  std::string chunked =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n7d0\r\n" +
      std::string(2000, ' ') + "\r\n0\r\n\r\n";
  EXPECT_EQ(server.send_raw(chunked).status, 413);
}

TEST(Http, BufferedBodiesAreBoundedTogether) {
  TestServerOptions options;
  options.http.max_buffered_bytes = 1000;
  TestServer server(options);
  EXPECT_EQ(server.post(kChat, std::string(2000, ' ')).status, 503);
  EXPECT_EQ(server.post(kChat, kHello).status, 200);  // the budget was given back
}

TEST(Http, SlowHeadersAre408) {
  TestServerOptions options;
  options.http.header_timeout = milliseconds(100);
  TestServer server(options);
  const int socket = server.connect();
  send_all(socket, "GET /health HTTP/1.1\r\nHo");
  EXPECT_EQ(read_response(socket).status, 408);
  ::close(socket);
}

TEST(Http, SlowBodiesAre408) {
  TestServerOptions options;
  options.http.body_timeout = milliseconds(100);
  TestServer server(options);
  const int socket = server.connect();
  send_all(socket, chat_request(kHello).substr(0, 120));
  EXPECT_EQ(read_response(socket).status, 408);
  ::close(socket);
}

TEST(Http, IdleConnectionsAreClosed) {
  TestServerOptions options;
  options.http.idle_timeout = milliseconds(100);
  TestServer server(options);
  const int socket = server.connect();
  char byte = 0;
  EXPECT_EQ(::recv(socket, &byte, 1, 0), 0);
  ::close(socket);
}

TEST(Http, KeepAliveServesSeveralRequestsAlsoPipelined) {
  TestServer server;
  const int socket = server.connect();
  send_all(socket, chat_request(kHello));
  EXPECT_EQ(read_response(socket).status, 200);
  send_all(socket, chat_request(kHello) + "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(read_response(socket).status, 200);
  EXPECT_EQ(read_response(socket).body, R"({"status":"ready"})");
  ::close(socket);
}

TEST(Http, ContinueIsAnsweredBeforeTheBody) {
  TestServer server;
  const int socket = server.connect();
  const std::string request = chat_request(kHello);
  const std::size_t body = request.find("\r\n\r\n") + 2;
  send_all(socket, request.substr(0, body) + "Expect: 100-continue\r\n\r\n");
  char line[26] = {};
  ASSERT_EQ(::recv(socket, line, 25, MSG_WAITALL), 25);
  EXPECT_STREQ(line, "HTTP/1.1 100 Continue\r\n\r\n");
  send_all(socket, request.substr(body + 2));
  EXPECT_EQ(read_response(socket).status, 200);
  ::close(socket);
}

TEST(Http, Http10StreamsUntilClose) {
  TestServer server;
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})";
  std::string request = chat_request(body);
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  const int socket = server.connect();
  send_all(socket, request);
  std::string all;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::recv(socket, buffer, sizeof(buffer), 0)) > 0;) {
    all.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(socket);
  EXPECT_EQ(all.find("chunked"), std::string::npos);
  EXPECT_TRUE(all.ends_with("data: [DONE]\n\n"));
}

// A client that goes away frees its request, streaming or not.
TEST(Http, DisconnectCancels) {
  for (const char* stream : {"true", "false"}) {
    TestServerOptions options;
    options.engine.hold = true;
    TestServer server(options);
    const int socket = server.connect();
    send_all(socket, chat_request(std::string(R"({"messages":[{"role":"user","content":"Hi"}],)") +
                                  R"("stream":)" + stream + "}"));
    ASSERT_TRUE(wait_for([&] { return server.engine().stats().num_running == 1; }));
    ::close(socket);
    EXPECT_TRUE(wait_for([&] { return server.engine().num_aborted() == 1; })) << stream;
    EXPECT_TRUE(wait_for([&] {
      return server.engine().stats().num_free_blocks == 64 && server.app().num_in_flight() == 0;
    }));
  }
}

TEST(Http, HalfClosedClientsCountAsGone) {
  TestServerOptions options;
  options.engine.hold = true;
  TestServer server(options);
  const int socket = server.connect();
  send_all(socket, chat_request(kHello));
  ASSERT_TRUE(wait_for([&] { return server.engine().stats().num_running == 1; }));
  ::shutdown(socket, SHUT_WR);
  EXPECT_TRUE(wait_for([&] { return server.engine().num_aborted() == 1; }));
  ::close(socket);
}

TEST(Http, SilentStreamsGetComments) {
  TestServerOptions options;
  options.engine.hold = true;
  options.http.keep_alive_interval = milliseconds(30);
  TestServer server(options);
  const int socket = server.connect();
  send_all(socket, chat_request(R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})"));
  std::thread later([&server] {
    std::this_thread::sleep_for(milliseconds(150));
    server.engine().release();
  });
  const TestResponse response = read_response(socket);
  later.join();
  ::close(socket);
  EXPECT_NE(response.body.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

// A reader that stops is given up once its output no longer fits, and memory is freed.
TEST(Http, SlowReadersAreEnded) {
  TestServerOptions options;
  options.engine.step = std::chrono::microseconds(1);
  options.http.write_timeout = milliseconds(300);
  TestServer server(options);
  const int socket = server.connect();
  const int small = 4096;
  ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  send_all(socket, chat_request(R"({"messages":[{"role":"user","content":"Hi"}],"stream":true,
      "max_tokens":4000,"ignore_eos":true,"logprobs":true,"top_logprobs":20,"n":100})"));
  ASSERT_TRUE(wait_for([&] { return server.engine().stats().generation_tokens > 0; }));
  EXPECT_TRUE(wait_for([&] { return server.app().num_in_flight() == 0; }));
  ::close(socket);
}

TEST(Http, FullQueueIs503WithRetryAfter) {
  TestServerOptions options;
  options.engine.hold = true;
  options.engine.max_queued = 2;
  TestServer server(options);
  const int first = server.connect();
  const int second = server.connect();
  send_all(first, chat_request(kHello));
  send_all(second, chat_request(kHello));
  ASSERT_TRUE(wait_for([&] { return server.engine().stats().num_running == 2; }));
  const TestResponse refused = server.post(kChat, kHello);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("Retry-After"), "1");
  EXPECT_NE(server.get("/metrics")
                .body.find(R"(vllm:admission_rejections_total{engine="0",model_name="test-model",)"
                           R"(reason="max_num_queued_reqs"} 1)"),
            std::string::npos);
  server.engine().release();
  EXPECT_EQ(read_response(first).status, 200);
  EXPECT_EQ(read_response(second).status, 200);
  ::close(first);
  ::close(second);
}

// Drain: what runs finishes; what is cut off by the time-out ends with an error event and [DONE].
TEST(Http, ShutdownEndsStreamsInOrder) {
  TestServerOptions options;
  options.engine.hold = true;
  TestServer server(options);
  const int socket = server.connect();
  send_all(socket, chat_request(R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})"));
  ASSERT_TRUE(wait_for([&] { return server.engine().stats().num_running == 1; }));
  server.app().start_draining();
  server.http().stop_accepting();
  server.app().start_stopping();
  server.engine().abort_all();
  const TestResponse response = read_response(socket);
  ::close(socket);
  EXPECT_EQ(response.status, 200);
  const std::vector<Json> events = parse_events(response.body);
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back()["error"]["code"], 503);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(server.http().wait_idle(milliseconds(2000)));
}

TEST(Http, ManyConnectionsAreServedAndFurtherOnesRefused) {
  TestServerOptions options;
  options.http.max_connections = 3;
  TestServer server(options);
  int sockets[3];
  for (int& socket : sockets) {
    socket = server.connect();
    send_all(socket, "GET /health HTTP/1.1\r\nHost: t\r\n\r\n");
    EXPECT_EQ(read_response(socket).status, 200);
  }
  EXPECT_EQ(server.get("/health").status, 503);
  for (const int socket : sockets) ::close(socket);
  EXPECT_TRUE(wait_for([&] { return server.get("/health").status == 200; }));
}

TEST(Http, KeysGuardTheApiOnly) {
  TestServerOptions options;
  options.app.keys = ApiKeys({"first", "second"});
  TestServer server(options);
  EXPECT_EQ(server.get("/v1/models").status, 401);
  EXPECT_EQ(server.get("/v1/models", "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(server.get("/v1/models", "authorization: bEARER  first \r\n").status, 200);
  EXPECT_EQ(server.get("/v1/models", "Authorization: Bearer third\r\n").status, 401);
  EXPECT_EQ(server.get("/%76%31/models").status, 401);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/metrics").status, 200);
  // A wrong key is told before the body is read.
  EXPECT_EQ(server
                .send_raw("POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: "
                          "application/json\r\nContent-Length: 60000000\r\n\r\n")
                .status,
            401);
}

TEST(Http, CorsAnswersOnlyWhenAsked) {
  const std::string origin = "Origin: https://a.example\r\n";
  {
    TestServer server;
    EXPECT_EQ(server.get("/health", origin).header("Access-Control-Allow-Origin"), "");
  }
  TestServerOptions options;
  options.app.keys = ApiKeys({"key"});
  options.app.cors.allowed_origins = {"https://a.example"};
  TestServer server(options);
  EXPECT_EQ(server.get("/health", origin).header("Access-Control-Allow-Origin"),
            "https://a.example");
  EXPECT_EQ(
      server.get("/health", "Origin: https://b.example\r\n").header("Access-Control-Allow-Origin"),
      "");
  const TestResponse preflight = server.send_raw(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\n" + origin +
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization\r\n"
      "\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("Access-Control-Allow-Headers"), "authorization");
}

}  // namespace
}  // namespace winnow::server::testing
