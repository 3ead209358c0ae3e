// What probes and clients are told in each state of the server (docs/operations.md).
#include <gtest/gtest.h>

#include <string>

#include "server/testing/test_server.h"

namespace winnow::server::testing {
namespace {

void expect_health(TestServer& server, int status, const Json& body) {
  for (const char* path : {"/health", "/ping"}) {
    const TestResponse response = server.get(path);
    EXPECT_EQ(response.status, status) << path;
    EXPECT_EQ(Json::parse(response.body), body) << path;
  }
  EXPECT_EQ(server.post("/ping", "").status, status);
  EXPECT_EQ(server.get("/health/live").status, 200);
  EXPECT_EQ(server.get("/version").status, 200);
  EXPECT_EQ(Json::parse(server.get("/load").body), (Json{{"server_load", 0}}));
  EXPECT_EQ(server.get("/metrics").status, 200);
}

TEST(Health, ListensWhileLoadingAndSaysHowFarItIs) {
  TestServerOptions options;
  options.is_ready = false;
  options.app.version = {{"version", "1.2.3"}};
  TestServer server(options);
  server.app().set_loading_progress(37);
  expect_health(server, 503, {{"status", "loading"}, {"percent", 37}});
  EXPECT_EQ(Json::parse(server.get("/version").body)["version"], "1.2.3");
  for (const TestResponse& refused : {server.post(kChat, chat()), server.get("/v1/models"),
                                      server.post("/tokenize", R"({"prompt":"a"})")}) {
    EXPECT_EQ(refused.status, 503);
    EXPECT_NE(refused.header("Retry-After"), "");
    EXPECT_NE(refused.body.find("loading (37 %)"), std::string::npos) << refused.body;
  }
  EXPECT_EQ(server.get("/").status, 200);  // the page says that it loads
  server.set_ready();
  expect_health(server, 200, {{"status", "ready"}});
  EXPECT_EQ(server.post(kChat, chat()).status, 200);
}

TEST(Health, DrainingRefusesWorkAndIsNotReady) {
  TestServer server;
  server.app().start_draining();
  expect_health(server, 503, {{"status", "draining"}});
  const TestResponse refused = server.post(kChat, chat());
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.header("Retry-After"), "");
}

TEST(Health, ALostEngineIsBroken) {
  TestServer server;
  server.engine().break_down();
  EXPECT_EQ(server.app().state(), ServerState::kBroken);
  expect_health(server, 503, {{"status", "broken"}});
  EXPECT_EQ(server.post(kChat, chat()).status, 503);
}

TEST(Health, ProbesNeedNoKey) {
  TestServerOptions options;
  options.app.keys = ApiKeys({"secret"});
  TestServer server(options);
  expect_health(server, 200, {{"status", "ready"}});
  EXPECT_EQ(server.post(kChat, chat()).status, 401);
}

}  // namespace
}  // namespace winnow::server::testing
