// Whole runs, against this server and against ones that misbehave.
#include "load/run.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "load/report.h"
#include "server/testing/test_server.h"

namespace winnow::load {
namespace {

using testing::HasSubstr;

RunOptions options_for(std::uint16_t port, bool is_chat = false) {
  RunOptions options;
  options.client.base = {.host = "127.0.0.1", .port = std::to_string(port), .path = ""};
  options.client.is_chat = is_chat;
  options.client.endpoint = is_chat ? "/v1/chat/completions" : "/v1/completions";
  options.client.model = "test-model";
  options.client.timeout = std::chrono::seconds(20);
  options.ready_timeout = std::chrono::seconds(0);
  return options;
}

const std::vector<Prompt> kPrompts(12, {"hello", 5, 8});

TEST(Run, CountsWhatTheServerStreams) {
  for (const bool is_chat : {false, true}) {
    server::testing::TestServer server;
    RunOptions options = options_for(server.http().port(), is_chat);
    options.client.model.clear();  // the first of /v1/models
    options.client.ignore_eos = true;
    options.client.extra_body = {{"temperature", 0.5}};
    options.max_concurrency = 4;
    options.num_warmups = 3;
    options.ready_timeout = std::chrono::seconds(20);
    const RunResult result = run(options, kPrompts);
    EXPECT_EQ(result.model, "test-model");
    EXPECT_EQ(result.peak_concurrency, 4U);
    EXPECT_FLOAT_EQ(server.engine().last_request().sampling.temperature, 0.5F);
    for (const RequestRecord& record : result.records) {
      EXPECT_TRUE(record.success) << record.error;
      EXPECT_TRUE(record.has_usage);
      EXPECT_EQ(record.output_tokens, 8);
      EXPECT_EQ(record.text, "Hello, w");
      EXPECT_LE(record.first_token(), record.latency);
    }
    const Json json = result_json(options, result, kPrompts, {});
    EXPECT_EQ(json["completed"], 12);
    EXPECT_EQ(json["total_output_tokens"], 96);
  }
}

TEST(Run, RefusedRequestsAreCountedWithTheirMessage) {
  server::testing::TestServer server;
  RunOptions options = options_for(server.http().port());
  options.client.model = "nobody";
  const RunResult result = run(options, kPrompts);
  for (const RequestRecord& record : result.records) {
    EXPECT_FALSE(record.success);
    EXPECT_THAT(record.error, HasSubstr("HTTP 404"));
    EXPECT_THAT(record.error, HasSubstr("nobody"));
  }
  options.ready_timeout = std::chrono::seconds(20);
  EXPECT_THROW((void)run(options, kPrompts), Error);  // at once, not after 20 s
}

TEST(Run, OnlyWhatWillBeRefusedAgainIsNotTriedAgain) {
  for (const int status : {400, 401, 404, 413, 422}) EXPECT_TRUE(is_refusal(status)) << status;
  for (const int status : {0, 200, 408, 425, 429, 500, 503}) EXPECT_FALSE(is_refusal(status));
}

TEST(Run, ArrivalsFollowTheRate) {
  server::testing::TestServer server;
  RunOptions options = options_for(server.http().port());
  options.arrivals.request_rate = 100;
  const RunResult result = run(options, kPrompts);
  const std::vector<double> due = arrival_seconds(options.arrivals, kPrompts.size());
  for (std::size_t i = 0; i < due.size(); ++i) EXPECT_GE(result.records[i].start, due[i]);
}

/// Says the same to every connection, after a request's first bytes, and closes it.
class RudeServer {
 public:
  explicit RudeServer(std::string reply) : reply_(std::move(reply)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~RudeServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::uint16_t port() const { return port_; }

 private:
  void serve() {
    for (;;) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) return;
      std::string sink(64U << 10, '\0');
      (void)::recv(client, sink.data(), sink.size(), 0);
      server::testing::send_all(client, reply_);
      if (reply_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ::close(client);
    }
  }

  std::string reply_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

const std::string kStreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
const std::string kText = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";

TEST(Run, SurvivesServersThatMisbehave) {
  const std::string too_long(17U << 20, 'x');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no reply"},
      {"nonsense\r\n\r\n", "no reply"},
      {"HTTP/1.1 200 OK\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n", "no reply"},
      {"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nbad", "HTTP 500: bad"},
      {"HTTP/1.1 503 No\r\nContent-Length: 40\r\n\r\n{\"error\":", "cut"},
      {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
       "did not stream"},
      {kStreamHead + "Connection: close\r\n\r\n" + kText, "cut before its end"},
      {kStreamHead + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "cut"},
      {kStreamHead + "Transfer-Encoding: chunked\r\n\r\n40\r\ndata: {\"cho", "cut"},
      {kStreamHead + "Content-Length: 0\r\n\r\n", "cut before its end"},
      {kStreamHead + "Connection: close\r\n\r\ndata: " + too_long, "too large"},
  };
  for (const auto& [reply, expected] : cases) {
    const RudeServer server(reply);
    const RunOptions options = options_for(server.port());
    const RunResult result = run(options, std::vector<Prompt>(3, {"hi", 1, 1}));
    for (const RequestRecord& record : result.records) {
      EXPECT_FALSE(record.success);
      EXPECT_THAT(record.error, HasSubstr(expected)) << reply.substr(0, 60);
    }
  }
}

TEST(Run, TakesAStreamThatEndsWithTheConnection) {
  const RudeServer server("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + kText +
                          kText + "data: [DONE]\n\n");
  const RunOptions options = options_for(server.port());
  const RunResult result = run(options, std::vector<Prompt>(3, {"hi", 1, 2}));
  for (const RequestRecord& record : result.records) {
    EXPECT_TRUE(record.success) << record.error;
    EXPECT_EQ(record.text, "aa");
  }
  const Json json = result_json(options, result, std::vector<Prompt>(3, {"hi", 1, 2}), {});
  EXPECT_EQ(json["total_output_tokens"], 6);  // no usage: events with text
}

TEST(Run, ASilentServerIsGivenUp) {
  server::testing::TestServerOptions silent;
  silent.engine.hold = true;
  server::testing::TestServer server(silent);
  RunOptions options = options_for(server.http().port());
  options.client.timeout = std::chrono::milliseconds(100);
  const RunResult result = run(options, std::vector<Prompt>(3, {"hi", 1, 1}));
  for (const RequestRecord& record : result.records) {
    EXPECT_THAT(record.error, HasSubstr("--request-timeout"));
  }
}

TEST(Run, NobodyThereIsAnError) {
  RunOptions options = options_for(1);
  options.ready_timeout = std::chrono::seconds(1);
  EXPECT_THROW((void)run(options, kPrompts), Error);
}

}  // namespace
}  // namespace winnow::load
