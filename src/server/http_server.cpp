#include "server/http_server.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "server/asio.h"
#include "server/http_session.h"
#include "server/http_wire.h"

namespace winnow::server {
namespace {

using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;
using Endpoint = asio::generic::stream_protocol::endpoint;

constexpr auto kAcceptRetry = std::chrono::milliseconds(100);  // out of file descriptors

Endpoint resolve(asio::io_context& context, const HttpOptions& options) {
  error_code error;
  asio::ip::tcp::resolver resolver(context);
  const std::string host = options.host.empty() ? "0.0.0.0" : options.host;
  const auto results =
      resolver.resolve(host, std::to_string(options.port), asio::ip::tcp::resolver::passive, error);
  if (error || results.empty()) {
    throw Error(ErrorCode::kIo, fmt::format("--host {}: {}", host, error.message()),
                "give an address of this machine, e.g. 127.0.0.1 or 0.0.0.0");
  }
  const asio::ip::tcp::endpoint first = *results.begin();
  return Endpoint(first);
}

/// A socket file that no server answers on any more is removed; a live one is an error.
void remove_stale_socket(asio::io_context& context, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return;
  if (!S_ISSOCK(info.st_mode)) {
    throw Error(ErrorCode::kIo, fmt::format("--uds {}: exists and is no socket", path));
  }
  asio::local::stream_protocol::socket probe(context);
  error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (!error) throw Error(ErrorCode::kIo, fmt::format("--uds {}: another server uses it", path));
  ::unlink(path.c_str());
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler& handler)
      : options_(options),
        workers_(static_cast<std::size_t>(std::max(1, options.num_worker_threads))),
        door_(asio::make_strand(io_context_)),
        acceptor_(door_),
        retry_timer_(door_) {
    shared_->options = &options_;
    shared_->handler = &handler;
    shared_->workers = &workers_;
    Endpoint endpoint;
    if (!options_.uds.empty()) {
      if (options_.uds.size() >= sizeof(sockaddr_un::sun_path)) {
        throw Error(ErrorCode::kIo, fmt::format("--uds {}: path is too long", options_.uds));
      }
      remove_stale_socket(io_context_, options_.uds);
      endpoint = Endpoint(asio::local::stream_protocol::endpoint(options_.uds));
    } else {
      endpoint = resolve(io_context_, options_);
    }
    listen_on(endpoint);
  }

  ~Impl() { stop(); }

  void start() {
    accept();
    for (int i = 0; i < std::max(1, options_.num_io_threads); ++i) {
      threads_.emplace_back([this] {
        try {
          io_context_.run();
        } catch (const std::exception& error) {
          spdlog::critical("I/O thread ended: {}", error.what());
        }
      });
    }
  }

  std::string url() const {
    if (!options_.uds.empty()) return "unix:" + options_.uds;
    const bool any = options_.host.empty() || options_.host == "0.0.0.0" || options_.host == "::";
    const std::string host = any ? "localhost" : options_.host;
    const bool is_v6 = host.find(':') != std::string::npos;
    return fmt::format("http://{}:{}", is_v6 ? "[" + host + "]" : host, port_);
  }
  std::uint16_t port() const { return port_; }

  void stop_accepting() {
    {
      const std::lock_guard lock(sessions_mutex_);
      shared_->stopping = true;  // admit() takes nobody in after this
    }
    asio::post(door_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
      retry_timer_.cancel();
    });
    for_each_session([](HttpSession& session) { session.close_when_idle(); });
  }

  bool wait_idle(std::chrono::milliseconds timeout) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    while (shared_->num_busy > 0) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  void stop() {
    if (is_stopped_) return;
    is_stopped_ = true;
    workers_.join();
    if (!threads_.empty()) {
      stop_accepting();
      for_each_session([](HttpSession& session) { session.abort(); });
      // Their sockets are closed, so each ends by itself; none may outlive this call, because
      // replies use the engine.
      while (shared_->num_connections > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    io_context_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    if (!options_.uds.empty()) ::unlink(options_.uds.c_str());
  }

 private:
  void listen_on(const Endpoint& endpoint) {
    error_code error;
    const auto failed = [&](const char* what) {
      const std::string where =
          options_.uds.empty() ? fmt::format("{}:{}", options_.host, options_.port) : options_.uds;
      const bool in_use = error == asio::error::address_in_use;
      throw Error(ErrorCode::kIo, fmt::format("cannot {} {}: {}", what, where, error.message()),
                  in_use ? "another program uses it; choose another with --port" : "");
    };
    acceptor_.open(endpoint.protocol(), error);
    if (error) failed("open a socket for");
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (options_.uds.empty() && endpoint.protocol().family() == AF_INET6) {
      acceptor_.set_option(asio::ip::v6_only(false), error);
    }
    acceptor_.bind(endpoint, error);
    if (error) failed("listen on");
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) failed("listen on");
    port_ = options_.port;
    if (options_.uds.empty() && options_.port == 0) {
      sockaddr_storage name{};
      socklen_t size = sizeof(name);
      ::getsockname(acceptor_.native_handle(), reinterpret_cast<sockaddr*>(&name), &size);
      port_ =
          ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(name).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(name).sin_port);
    }
  }

  /// Before the threads run, or on door_; what it waits for comes there as well.
  void accept() {
    Strand strand = asio::make_strand(io_context_);
    acceptor_.async_accept(strand, [this, strand](const error_code& error, auto socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) {
        spdlog::warn("cannot accept a connection: {}", error.message());
        retry_timer_.expires_after(kAcceptRetry);
        retry_timer_.async_wait([this](const error_code& cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      admit(StreamSocket(std::move(socket)), strand);
      accept();
    });
  }

  void admit(StreamSocket socket, const Strand& strand) {
    error_code ignored;
    if (options_.uds.empty()) socket.set_option(asio::ip::tcp::no_delay(true), ignored);
    if (shared_->num_connections >= options_.max_connections) {
      HttpResponse response =
          shared_->handler->transport_error({}, 503, "too many connections; retry");
      ResponseStyle style;
      style.keep_alive = false;
      socket.non_blocking(true, ignored);
      socket.send(asio::buffer(format_response(response, style)), 0, ignored);
      return;
    }
    const std::lock_guard lock(sessions_mutex_);
    if (shared_->stopping) return;
    std::erase_if(sessions_, [](const auto& weak) { return weak.expired(); });
    sessions_.push_back(start_session(std::move(socket), strand, shared_));
  }

  template <typename F>
  void for_each_session(F&& f) {
    const std::lock_guard lock(sessions_mutex_);
    for (const auto& weak : sessions_) {
      if (const auto session = weak.lock()) f(*session);
    }
  }

  HttpOptions options_;
  asio::io_context io_context_;
  asio::thread_pool workers_;
  Strand door_;  // of the acceptor and its timer, which bear one thread at a time
  Acceptor acceptor_;
  asio::steady_timer retry_timer_;
  std::uint16_t port_ = 0;
  std::shared_ptr<SessionContext> shared_ = std::make_shared<SessionContext>();
  std::mutex sessions_mutex_;
  std::vector<std::weak_ptr<HttpSession>> sessions_;
  std::vector<std::thread> threads_;
  bool is_stopped_ = false;
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler& handler)
    : impl_(std::make_unique<Impl>(options, handler)) {}
HttpServer::~HttpServer() = default;
void HttpServer::start() { impl_->start(); }
std::string HttpServer::url() const { return impl_->url(); }
std::uint16_t HttpServer::port() const { return impl_->port(); }
void HttpServer::stop_accepting() { impl_->stop_accepting(); }
bool HttpServer::wait_idle(std::chrono::milliseconds timeout) { return impl_->wait_idle(timeout); }
void HttpServer::stop() { impl_->stop(); }

}  // namespace winnow::server
