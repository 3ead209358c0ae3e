// A whole server on a free port, with a byte-level tokenizer and a fake engine behind it, and a
// blocking client for raw bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/app.h"
#include "server/http_server.h"
#include "server/testing/fake_engine.h"
#include "text/token_cache.h"

namespace winnow {
class GrammarCompiler;
class Tokenizer;
}  // namespace winnow

namespace winnow::server::testing {

/// Ids 0…255 are the bytes, 256 is "[e~[" (eos), 257 "]~b]".
Tokenizer make_byte_tokenizer();
std::string byte_tokenizer_json();
inline constexpr TokenId kTestEos = 256;
inline constexpr std::int32_t kTestVocab = 258;

/// "role: content\n" per message, then "assistant:".
class PlainRenderer final : public ChatRenderer {
 public:
  std::vector<TextSegment> render(const Json& variables) const override;
};

struct TestServerOptions {
  std::string answer = "Hello, world";
  FakeEngineOptions engine;
  AppOptions app;
  HttpOptions http;
  GenerationDefaults defaults;
  AdapterRegistry* adapters = nullptr;  // outlives the server
  bool is_ready = true;
};

struct TestResponse {
  int status = 0;
  std::string head;
  std::string body;  // chunks joined
  std::string header(std::string_view name) const;
};

class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  App& app() { return *app_; }
  FakeEngine& engine() { return *engine_; }
  HttpServer& http() { return *server_; }
  void set_ready();

  TestResponse get(const std::string& path, const std::string& extra_headers = {});
  TestResponse post(const std::string& path, const std::string& body,
                    const std::string& extra_headers = {});
  /// Sends bytes as they are and reads until the server closes or a response is complete.
  TestResponse send_raw(std::string_view bytes);
  /// A connected socket; the caller closes it.
  int connect() const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  TokenCache token_cache_{std::int64_t{16} << 20};
  std::unique_ptr<GrammarCompiler> grammars_;
  PlainRenderer renderer_;
  std::unique_ptr<FakeEngine> engine_;
  ServingModel model_;
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<App> app_;
  std::unique_ptr<HttpServer> server_;
};

/// Reads one response from a socket.
TestResponse read_response(int socket);
void send_all(int socket, std::string_view bytes);

/// The JSON of each `data:` event, "[DONE]" left out.
std::vector<Json> parse_events(const std::string& body);

inline constexpr const char* kChat = "/v1/chat/completions";

/// A chat body with more members.
std::string chat(const std::string& members = {});

/// `param` of an error body, "" when it is null.
std::string error_param(const TestResponse& response);

}  // namespace winnow::server::testing
