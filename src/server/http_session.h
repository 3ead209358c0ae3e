// One connection: reads requests, hands them to the handler, writes what comes back, notices when
// the client goes away or is too slow. Everything of a session runs on its strand.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/asio.h"
#include "server/http_server.h"

namespace winnow::server {

/// What all sessions of a server share.
struct SessionContext {
  const HttpOptions* options = nullptr;
  HttpHandler* handler = nullptr;
  asio::thread_pool* workers = nullptr;
  std::atomic<int> num_connections{0};
  std::atomic<int> num_busy{0};  // requests from complete header to last byte written
  std::atomic<std::int64_t> buffered_bytes{0};
  std::atomic<bool> stopping{false};
};

class HttpSession {
 public:
  virtual ~HttpSession() = default;
  /// Any thread: closes the connection now if it is between requests, else after the current one.
  virtual void close_when_idle() = 0;
  /// Any thread: closes the connection now.
  virtual void abort() = 0;
};

/// Runs until the connection ends; keeps itself alive.
std::shared_ptr<HttpSession> start_session(StreamSocket socket, Strand strand,
                                           std::shared_ptr<SessionContext> context);

}  // namespace winnow::server
