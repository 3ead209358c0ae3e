#include "server/testing/test_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace winnow::server::testing {
namespace {

constexpr int kReadSeconds = 20;  // a test that waits longer has failed

/// GPT-2's printable alphabet of bytes, as UTF-8.
std::string byte_symbol(int byte) {
  const auto is_plain = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
  };
  int code = byte;
  if (!is_plain(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += is_plain(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

Json added_token(int id, const char* content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

std::string byte_tokenizer_json() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[byte_symbol(byte)] = byte;
  Json file;
  file["version"] = "1.0";
  file["truncation"] = nullptr;
  file["padding"] = nullptr;
  file["added_tokens"] = Json::array({added_token(256, "[e~["), added_token(257, "]~b]")});
  file["normalizer"] = nullptr;
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  file["pre_tokenizer"] = byte_level;
  file["post_processor"] = nullptr;
  file["decoder"] = byte_level;
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocab)},
                   {"merges", Json::array()}};
  return file.dump();
}

Tokenizer make_byte_tokenizer() { return Tokenizer::from_json(byte_tokenizer_json()); }

std::vector<TextSegment> PlainRenderer::render(const Json& variables) const {
  std::vector<TextSegment> out;
  for (const Json& message : variables["messages"]) {
    out.push_back({message["role"].get<std::string>() + ": ", true});
    out.push_back({message["content"].get<std::string>(), false});
    out.push_back({"\n", true});
  }
  if (variables["add_generation_prompt"].get<bool>()) out.push_back({"assistant:", true});
  return out;
}

TestServer::TestServer(TestServerOptions options)
    : tokenizer_(std::make_unique<Tokenizer>(make_byte_tokenizer())) {
  FakeEngineOptions engine = options.engine;
  if (engine.answer.empty()) engine.answer = tokenizer_->encode(options.answer);
  engine.eos = kTestEos;
  engine.vocab_size = kTestVocab;
  engine_ = std::make_unique<FakeEngine>(std::move(engine));
  model_.names = {"test-model", "alias"};
  model_.root = "test-model";
  model_.fingerprint = "winnow-test";
  model_.max_model_len = 4096;
  model_.vocab_size = kTestVocab;
  model_.defaults = options.defaults;
  model_.msa = {.layers = {2, 3}, .num_groups = 1, .top_k = 2, .block_tokens = 128};
  model_.tokenizer = tokenizer_.get();
  model_.token_cache = &token_cache_;
  grammars_ = std::make_unique<GrammarCompiler>(*tokenizer_, kTestVocab, std::vector{kTestEos});
  model_.grammars = grammars_.get();
  model_.chat_template = &renderer_;
  model_.engine = engine_.get();
  model_.adapters = options.adapters;
  metrics_ = std::make_unique<ServerMetrics>(MetricsOptions{
      .model_name = "test-model", .max_model_len = 4096, .cache_config = {{"block_size", "128"}}});
  options.app.log_access = false;
  app_ = std::make_unique<App>(std::move(options.app));
  options.http.port = 0;
  server_ = std::make_unique<HttpServer>(options.http, *app_);
  if (options.is_ready) set_ready();
  server_->start();
}

TestServer::~TestServer() {
  engine_->abort_all();
  server_->stop();
  app_->stop_background();
  engine_.reset();  // its thread may still hold a wake of the server's
}

void TestServer::set_ready() { app_->set_ready(&model_, metrics_.get()); }

int TestServer::connect() const {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit{kReadSeconds, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect to the test server");
  }
  return socket;
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::string TestResponse::header(std::string_view name) const {
  const std::size_t at = head.find(fmt::format("\r\n{}: ", name));
  if (at == std::string::npos) return {};
  const std::size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

namespace {

/// Exactly `size` bytes, or fewer at the end: what follows belongs to the next response.
std::string read_exactly(int socket, std::size_t size) {
  std::string data(size, '\0');
  std::size_t done = 0;
  while (done < size) {
    const ssize_t count = ::recv(socket, data.data() + done, size - done, 0);
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  data.resize(done);
  return data;
}

std::string read_until(int socket, std::string_view end) {
  std::string data;
  while (!data.ends_with(end)) {
    const std::string byte = read_exactly(socket, 1);
    if (byte.empty()) return {};
    data += byte;
  }
  return data;
}

std::string read_chunks(int socket) {
  std::string body;
  for (;;) {
    const std::string line = read_until(socket, "\r\n");
    if (line.empty()) return body;
    const std::size_t size = std::stoul(line, nullptr, 16);
    body += read_exactly(socket, size);
    read_exactly(socket, 2);
    if (size == 0) return body;
  }
}

}  // namespace

TestResponse read_response(int socket) {
  TestResponse response;
  response.head = read_until(socket, "\r\n\r\n");
  if (response.head.empty()) return response;
  response.status = std::stoi(response.head.substr(9, 3));
  if (response.status == 100) return read_response(socket);
  if (response.header("Transfer-Encoding") == "chunked") {
    response.body = read_chunks(socket);
    return response;
  }
  const std::string length = response.header("Content-Length");
  response.body = read_exactly(socket, length.empty() ? 0 : std::stoul(length));
  return response;
}

TestResponse TestServer::send_raw(std::string_view bytes) {
  const int socket = connect();
  send_all(socket, bytes);
  TestResponse response = read_response(socket);
  ::close(socket);
  return response;
}

TestResponse TestServer::get(const std::string& path, const std::string& extra_headers) {
  return send_raw(fmt::format("GET {} HTTP/1.1\r\nHost: t\r\n{}\r\n", path, extra_headers));
}

TestResponse TestServer::post(const std::string& path, const std::string& body,
                              const std::string& extra_headers) {
  return send_raw(
      fmt::format("POST {} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n{}\r\n{}",
                  path, body.size(), extra_headers, body));
}

std::vector<Json> parse_events(const std::string& body) {
  std::vector<Json> out;
  std::size_t at = 0;
  while ((at = body.find("data: ", at)) != std::string::npos) {
    at += 6;
    const std::string line = body.substr(at, body.find("\n\n", at) - at);
    if (line != "[DONE]") out.push_back(Json::parse(line));
  }
  return out;
}

std::string chat(const std::string& members) {
  return R"({"messages":[{"role":"user","content":"Hi"}])" +
         (members.empty() ? "" : "," + members) + "}";
}

std::string error_param(const TestResponse& response) {
  const Json error = Json::parse(response.body)["error"];
  return error["param"].is_null() ? "" : error["param"].get<std::string>();
}

}  // namespace winnow::server::testing
