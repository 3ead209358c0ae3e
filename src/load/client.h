// Requests to one server over HTTP/1.1, streamed replies back, on connections that are kept. One
// thread: that of the io_context.
#pragma once

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "load/dataset.h"
#include "load/stream_reader.h"
#include "server/asio.h"

namespace winnow::load {

using Json = nlohmann::ordered_json;

/// "http://host:port/path" in pieces.
struct Url {
  std::string host;
  std::string port = "80";
  std::string path;  // without a slash at its end
};

/// Throws Error{kInvalidArgument}, for https too.
Url parse_url(const std::string& text);

struct ClientOptions {
  Url base;
  std::string endpoint = "/v1/completions";
  std::string model;
  bool is_chat = false;  // messages instead of a prompt
  bool ignore_eos = false;
  Json extra_body = Json::object();  // members that are added, or replace ours
  std::vector<std::pair<std::string, std::string>> headers;
  std::chrono::milliseconds timeout{6LL * 3600 * 1000};  // of a request
};

/// The body that asks for a prompt's answer.
std::string request_body(const ClientOptions& options, const Prompt& prompt);

/// Whether a reply's status says that the same request will be refused again.
bool is_refusal(int status);

class Client {
 public:
  /// Resolves the host. Throws Error{kIo}.
  Client(server::asio::io_context& context, ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Never throws for what a server does: the record says what went wrong. `prompt` outlives it.
  server::asio::awaitable<RequestRecord> send(const Prompt& prompt);
  /// The first name of /v1/models. Throws Error{kUnavailable}, or Error{kInvalidArgument} when
  /// asking again is no use.
  server::asio::awaitable<std::string> first_model();

  void set_model(std::string model) { options_.model = std::move(model); }

 private:
  struct Connection;
  struct Exchange;
  server::asio::awaitable<void> connect(Connection& connection, std::string& error);
  server::asio::awaitable<void> exchange(Exchange& exchange);
  server::asio::awaitable<bool> try_exchange(Connection& connection, Exchange& exchange);
  std::string format_request(const Exchange& exchange) const;

  server::asio::io_context& context_;
  ClientOptions options_;
  std::vector<server::asio::ip::tcp::endpoint> endpoints_;
  std::vector<std::shared_ptr<Connection>> idle_;
};

}  // namespace winnow::load
