#include "load/client.h"

#include <fmt/format.h>

#include <array>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <functional>
#include <limits>
#include <optional>

#include "base/error.h"

namespace winnow::load {
namespace {

namespace asio = server::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;

constexpr std::uint32_t kMaxHeaderBytes = 64U << 10;
constexpr std::size_t kMaxPlainBytes = 1U << 20;  // of a reply that is no stream

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

}  // namespace

Url parse_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  const auto fail = [&](std::string_view what, std::string hint = {}) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--base-url {}: {}", text, what),
                std::move(hint));
  };
  if (text.starts_with("https://")) {
    fail("https is not spoken here", "send through a local proxy that ends TLS");
  }
  if (!text.starts_with(kScheme)) fail("does not begin with http://");
  std::string rest = text.substr(kScheme.size());
  Url url;
  const std::size_t slash = rest.find('/');
  if (slash != std::string::npos) url.path = rest.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  rest.resize(std::min(slash, rest.size()));
  // "[::1]:8000" has colons of its own.
  const std::size_t colon = rest.find(':', rest.starts_with('[') ? rest.find(']') : 0);
  url.host = rest.substr(0, colon);
  if (colon != std::string::npos) url.port = rest.substr(colon + 1);
  if (url.host.starts_with('[') && url.host.ends_with(']')) {
    url.host = url.host.substr(1, url.host.size() - 2);
  }
  const bool is_number =
      !url.port.empty() && url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || !is_number || url.port.size() > 5 || std::stoi(url.port) > 65535) {
    fail("not of the form http://HOST:PORT");
  }
  const std::string unusable = "\r\n\t ";
  if (text.find_first_of(unusable) != std::string::npos) fail("holds white space");
  return url;
}

std::string request_body(const ClientOptions& options, const Prompt& prompt) {
  Json body;
  body["model"] = options.model;
  if (options.is_chat) {
    body["messages"] = Json::array({Json{{"role", "user"}, {"content", prompt.text}}});
  } else {
    body["prompt"] = prompt.text;
  }
  body["max_tokens"] = prompt.output_tokens;
  body["stream"] = true;
  body["stream_options"] = Json{{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  for (const auto& [name, value] : options.extra_body.items()) body[name] = value;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct Client::Connection {
  explicit Connection(asio::io_context& context) : socket(context) {}
  void close() {
    error_code ignored;
    socket.close(ignored);
  }
  tcp::socket socket;
  boost::beast::flat_buffer buffer;
  bool is_used = false;  // by a request before
  bool is_timed_out = false;
};

/// A request and what is made of its reply.
struct Client::Exchange {
  std::string method = "POST";
  std::string path;
  std::string body;
  SteadyClock::time_point start = SteadyClock::now();
  int status = 0;
  bool is_stream = false;
  bool has_reply = false;                          // its first byte at least
  bool can_reuse = false;                          // the connection, for another request
  std::string plain;                               // the reply's body when it is no stream
  std::string error;                               // of the transport
  std::function<bool(std::string_view)> on_bytes;  // of a stream
};

bool is_refusal(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 425 && status != 429;
}

Client::Client(asio::io_context& context, ClientOptions options)
    : context_(context), options_(std::move(options)) {
  tcp::resolver resolver(context_);
  error_code error;
  const auto found = resolver.resolve(options_.base.host, options_.base.port, error);
  if (error) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}:{}: {}", options_.base.host, options_.base.port, error.message()));
  }
  for (const auto& entry : found) endpoints_.push_back(entry.endpoint());
}

Client::~Client() = default;

std::string Client::format_request(const Exchange& exchange) const {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nUser-Agent: winnow-bench\r\n",
                                exchange.method, options_.base.path, exchange.path,
                                options_.base.host, options_.base.port);
  for (const auto& [name, value] : options_.headers) {
    out += fmt::format("{}: {}\r\n", name, value);
  }
  if (!exchange.body.empty()) {
    out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                       exchange.body.size());
  }
  return out + "\r\n" + exchange.body;
}

asio::awaitable<void> Client::connect(Connection& connection, std::string& error) {
  error_code failure = asio::error::host_not_found;
  for (const tcp::endpoint& endpoint : endpoints_) {
    connection.close();
    co_await connection.socket.async_connect(endpoint,
                                             asio::redirect_error(asio::use_awaitable, failure));
    if (connection.is_timed_out) co_return;  // the caller says so
    if (!failure) {
      error_code ignored;  // the peer may be gone already: the write finds out
      connection.socket.set_option(tcp::no_delay(true), ignored);
      co_return;
    }
  }
  error = fmt::format("cannot connect: {}", failure.message());
}

/// False when nothing came back, so that a request on a kept connection may be sent again: the
/// server closed it in the meantime.
asio::awaitable<bool> Client::try_exchange(Connection& connection, Exchange& exchange) {
  error_code error;
  const std::string request = format_request(exchange);
  co_await asio::async_write(connection.socket, asio::buffer(request),
                             asio::redirect_error(asio::use_awaitable, error));
  http::response_parser<http::buffer_body> parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(std::numeric_limits<std::uint64_t>::max());
  // After a failed write too: a server that refuses early has answered already.
  co_await http::async_read_header(connection.socket, connection.buffer, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
  exchange.has_reply = parser.got_some();
  if (error) {
    exchange.error = fmt::format("no reply: {}", error.message());
    co_return exchange.has_reply;
  }
  exchange.status = parser.get().result_int();
  const auto type = parser.get()[http::field::content_type];
  exchange.is_stream = exchange.status == 200 &&
                       std::string_view(type.data(), type.size()).starts_with("text/event-stream");
  std::array<char, 16U << 10> piece;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    parser.get().body().more = true;
    // Some, not all that fits: a token is timed when it comes.
    co_await http::async_read_some(connection.socket, connection.buffer, parser,
                                   asio::redirect_error(asio::use_awaitable, error));
    if (error == http::error::need_buffer) error = {};
    const std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
    if (exchange.is_stream) {
      if (!exchange.on_bytes(bytes)) {
        exchange.error = "an event is too large";
        co_return true;
      }
    } else if (exchange.plain.size() < kMaxPlainBytes) {
      exchange.plain += bytes;
    } else {
      exchange.error = fmt::format("HTTP {} with a body that does not end", exchange.status);
      co_return true;
    }
    if (error) {
      exchange.error = fmt::format("the reply was cut: {}", error.message());
      co_return true;
    }
  }
  exchange.can_reuse = parser.keep_alive() && connection.buffer.size() == 0;
  co_return true;
}

asio::awaitable<void> Client::exchange(Exchange& exchange) {
  std::shared_ptr<Connection> connection;
  asio::steady_timer deadline(context_);
  for (;;) {
    if (idle_.empty()) {
      connection = std::make_shared<Connection>(context_);
    } else {
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    deadline.expires_at(exchange.start + options_.timeout);
    deadline.async_wait([weak = std::weak_ptr(connection)](const error_code& error) {
      const auto late = weak.lock();
      if (error || !late) return;
      late->is_timed_out = true;
      late->close();
    });
    if (!connection->is_used) co_await connect(*connection, exchange.error);
    if (!exchange.error.empty() || connection->is_timed_out) break;
    const bool was_used = std::exchange(connection->is_used, true);
    const bool is_answered = co_await try_exchange(*connection, exchange);
    if (is_answered || !was_used || connection->is_timed_out) break;
    exchange.error.clear();
  }
  deadline.cancel();
  if (connection->is_timed_out) {
    exchange.error = "the request took longer than --request-timeout";
  } else if (exchange.error.empty() && exchange.can_reuse) {
    idle_.push_back(std::move(connection));
  }
}

asio::awaitable<RequestRecord> Client::send(const Prompt& prompt) {
  RequestRecord record;
  ReplyReader reply(record);
  Exchange exchange;
  exchange.path = options_.endpoint;
  exchange.body = request_body(options_, prompt);
  record.sent = exchange.start = SteadyClock::now();
  EventReader events(
      [&](std::string_view data) { reply.add_event(data, seconds_since(exchange.start)); });
  exchange.on_bytes = [&](std::string_view bytes) { return events.add(bytes); };
  co_await this->exchange(exchange);
  record.status = exchange.status;
  if (!exchange.error.empty()) {
    record.error = exchange.error;
  } else if (exchange.status != 200) {
    record.error = error_text(exchange.status, exchange.plain);
  } else if (!exchange.is_stream) {
    record.error = "the server did not stream its reply";
  }
  reply.finish();
  co_return record;
}

asio::awaitable<std::string> Client::first_model() {
  Exchange exchange;
  exchange.method = "GET";
  exchange.path = "/v1/models";
  exchange.on_bytes = [](std::string_view) { return false; };
  co_await this->exchange(exchange);
  if (exchange.error.empty() && exchange.status != 200) {
    exchange.error = error_text(exchange.status, exchange.plain);
  }
  if (exchange.error.empty()) {
    const Json models = Json::parse(exchange.plain, nullptr, false);
    const auto path = Json::json_pointer("/data/0/id");
    if (models.is_object() && models.contains(path) && models.at(path).is_string()) {
      co_return models.at(path).get<std::string>();
    }
    exchange.error = "lists none";
  }
  const bool is_refused = is_refusal(exchange.status);
  throw Error(is_refused ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable,
              fmt::format("/v1/models: {}", exchange.error), "name the model with --model");
}

}  // namespace winnow::load
