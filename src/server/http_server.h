// Listener and I/O threads. Owns the sockets; everything above HTTP is behind HttpHandler.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http_message.h"

namespace winnow::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;  // 0: any free port
  std::string uds;            // path of a Unix socket; wins over host and port
  int num_io_threads = 2;
  int num_worker_threads = 2;  // JSON, template and tokenizer of large bodies

  std::int64_t max_body_bytes = 64LL << 20;               // of one request: 413
  std::int64_t max_buffered_bytes = 1LL << 30;            // bodies of all requests being read: 503
  std::uint32_t max_header_bytes = 32U << 10;             // 431
  int max_connections = 4096;                             // further ones get 503
  std::chrono::milliseconds header_timeout{10'000};       // first to last header byte: 408
  std::chrono::milliseconds body_timeout{30'000};         // between two reads of a body: 408
  std::chrono::milliseconds idle_timeout{75'000};         // between requests of one connection
  std::chrono::milliseconds write_timeout{60'000};        // a client that does not read
  std::chrono::milliseconds keep_alive_interval{15'000};  // comments on a silent stream; 0: none
};

class HttpServer {
 public:
  /// Binds and listens; throws Error{kIo} naming the address. `handler` outlives the server.
  HttpServer(const HttpOptions& options, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Starts the threads and accepts.
  void start();
  /// "http://127.0.0.1:8000" or "unix:/path".
  std::string url() const;
  std::uint16_t port() const;

  /// Closes the listener and idle connections; requests in progress go on.
  void stop_accepting();
  /// Waits until no connection has a request in progress; false when `timeout` passed first.
  bool wait_idle(std::chrono::milliseconds timeout);
  /// Closes everything and joins the threads.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::server
