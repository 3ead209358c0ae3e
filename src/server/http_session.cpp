#include "server/http_session.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <string>

#include "base/log.h"
#include "server/http_wire.h"

namespace winnow::server {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;
using std::chrono::milliseconds;
using Parser = http::request_parser<http::string_body>;

constexpr std::size_t kWritePiece = 256U << 10;   // the write time-out applies to each
constexpr std::size_t kMaxPipelined = 64U << 10;  // bytes kept of requests sent ahead
constexpr std::uint64_t kMaxSkipped = 64U << 10;  // body of a refused request that is read anyway
constexpr int kBodyTimeouts = 20;                 // body_timeout × this bounds the whole body
constexpr milliseconds kLinger{3'000};            // reading on after refusing a body

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

/// Fills all but the body; false when the target is not a path.
bool convert_head(const Parser::value_type& message, HttpRequest& out) {
  out.method = std::string(message.method_string());
  std::string_view target(message.target().data(), message.target().size());
  if (target.starts_with("http://") || target.starts_with("https://")) {  // absolute form
    const std::size_t slash = target.find('/', target.find("//") + 2);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const std::size_t question = target.find('?');
  if (question != std::string_view::npos) out.query = std::string(target.substr(question + 1));
  const std::optional<std::string> path = percent_decode(target.substr(0, question));
  if (!path || (!path->starts_with('/') && *path != "*")) return false;
  out.path = *path;
  for (const auto& field : message) {
    out.headers.emplace_back(lower_case({field.name_string().data(), field.name_string().size()}),
                             std::string(field.value()));
  }
  return true;
}

/// Counts a body against the memory of all requests being read; gives it back at the end.
class BodyBudget {
 public:
  BodyBudget(std::atomic<std::int64_t>& total, std::int64_t limit) : total_(total), limit_(limit) {}
  ~BodyBudget() { total_ -= held_; }
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  [[nodiscard]] bool grow_to(std::int64_t size) {
    const std::int64_t more = size - held_;
    held_ = size;
    return total_.fetch_add(more) + more <= limit_;
  }

 private:
  std::atomic<std::int64_t>& total_;
  std::int64_t limit_;
  std::int64_t held_ = 0;
};

struct Counted {
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::atomic<int>& count_;
};

constexpr int kClientGone = 499;

/// Tells the handler how a request went, whichever way its serving ends.
class Finish {
 public:
  Finish(HttpHandler& handler, const HttpRequest& head, RequestOutcome& outcome)
      : handler_(handler), head_(head), outcome_(outcome) {
    outcome_ = {};
  }
  ~Finish() {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    outcome_.seconds = elapsed.count();
    handler_.on_finished(head_, outcome_);
  }
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;

 private:
  HttpHandler& handler_;
  const HttpRequest& head_;
  RequestOutcome& outcome_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Session final : public HttpSession, public std::enable_shared_from_this<Session> {
 public:
  Session(StreamSocket socket, Strand strand, std::shared_ptr<SessionContext> context)
      : socket_(std::move(socket)),
        strand_(std::move(strand)),
        context_(std::move(context)),
        deadline_(strand_),
        signal_(strand_) {
    ++context_->num_connections;
  }
  ~Session() override { --context_->num_connections; }

  void start() {
    asio::co_spawn(
        strand_, [self = shared_from_this()] { return self->run(); }, asio::detached);
  }

  void close_when_idle() override {
    asio::post(strand_, [self = shared_from_this()] {
      if (self->is_idle_) self->close();
    });
  }
  void abort() override {
    asio::post(strand_, [self = shared_from_this()] {
      self->disconnected_ = true;
      self->notify();
      self->close();
    });
  }

 private:
  const HttpOptions& options() const { return *context_->options; }
  HttpHandler& handler() const { return *context_->handler; }

  asio::awaitable<void> run() {
    try {
      while (co_await serve_one()) {
      }
    } catch (const std::exception& error) {
      spdlog::error("connection ended by an internal error: {}", error.what());
    }
    deadline_.cancel();
    close();
  }

  /// One request and its response; false when the connection is to be closed.
  asio::awaitable<bool> serve_one() {
    error_code error;
    if (buffer_.size() == 0) {
      is_idle_ = true;
      arm(options().idle_timeout);
      co_await socket_.async_wait(StreamSocket::wait_read,
                                  asio::redirect_error(asio::use_awaitable, error));
      is_idle_ = false;
      if (error || context_->stopping) co_return false;
    }
    current_ = {};
    Parser parser;
    parser.header_limit(options().max_header_bytes);
    parser.body_limit(static_cast<std::uint64_t>(options().max_body_bytes));
    arm(options().header_timeout);
    co_await http::async_read_header(socket_, buffer_, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
    if (error) {
      HttpRequest head;  // of a body announced as too large the header is complete
      if (error == http::error::body_limit && convert_head(parser.get(), head)) {
        current_.method = head.method;
        current_.path = head.path;
      }
      co_return co_await fail(error);
    }

    const Counted busy(context_->num_busy);
    const Finish finish(handler(), current_, outcome_);
    HttpRequest request;
    if (!convert_head(parser.get(), request)) {
      co_return co_await refuse(400, "the request target is no path");
    }
    request.id = handler().request_id(request);
    current_.id = request.id;
    current_.method = request.method;
    current_.path = request.path;
    ResponseStyle style;
    style.is_http_1_1 = parser.get().version() >= 11;
    style.keep_alive = parser.keep_alive();
    style.head_only = request.method == "HEAD";
    style.extra_headers = handler().response_headers(request);
    const std::optional<HttpResponse> refusal = handler().check_head(request);
    const bool is_waiting_to_send = lower_case(request.header("expect")) == "100-continue";
    if (refusal) {
      const std::uint64_t rest = parser.content_length_remaining().value_or(kMaxSkipped + 1);
      if (!parser.is_done() && (rest > kMaxSkipped || is_waiting_to_send)) {
        co_return co_await refuse(*refusal, style);
      }
    }

    BodyBudget budget(context_->buffered_bytes, options().max_buffered_bytes);
    if (!parser.is_done()) {
      if (is_waiting_to_send) {
        const bool is_written = co_await write("HTTP/1.1 100 Continue\r\n\r\n");
        if (!is_written) co_return false;
      }
      const auto last_moment =
          std::chrono::steady_clock::now() + kBodyTimeouts * options().body_timeout;
      while (!parser.is_done()) {
        arm(options().body_timeout);
        co_await http::async_read_some(socket_, buffer_, parser,
                                       asio::redirect_error(asio::use_awaitable, error));
        if (!error && std::chrono::steady_clock::now() > last_moment) {
          error = asio::error::operation_aborted;
          timed_out_ = true;
        }
        if (error) co_return co_await fail(error);
        if (!budget.grow_to(static_cast<std::int64_t>(parser.get().body().size()))) {
          (void)budget.grow_to(0);
          co_return co_await refuse(503, "too many request bodies are being read; retry");
        }
      }
      request.body = std::move(parser.get().body());
    }
    disarm();
    if (refusal) co_return co_await respond(*refusal, style);
    co_return co_await dispatch(std::move(request), style);
  }

  asio::awaitable<bool> dispatch(HttpRequest request, const ResponseStyle& style) {
    HttpReply reply;
    if (handler().is_quick(request)) {
      reply = handler().handle(std::move(request));
    } else {
      worker_reply_.reset();
      asio::post(
          *context_->workers, [self = shared_from_this(), request = std::move(request)]() mutable {
            auto made = std::make_shared<HttpReply>(self->handler().handle(std::move(request)));
            asio::post(self->strand_, [self, made] {
              self->worker_reply_ = std::move(*made);
              self->notify();
            });
          });
      while (!worker_reply_) co_await wait_signal(milliseconds::zero());
      reply = std::move(*worker_reply_);
      worker_reply_.reset();
    }
    if (const auto* response = std::get_if<HttpResponse>(&reply)) {
      co_return co_await respond(*response, style);
    }
    const auto pending = std::get<std::shared_ptr<PendingReply>>(std::move(reply));
    const bool keep = co_await serve_pending(pending, style);
    outcome_.fields = pending->log_fields();
    ++watch_number_;  // ends the watching
    co_return keep;
  }

  asio::awaitable<bool> serve_pending(std::shared_ptr<PendingReply> reply,
                                      const ResponseStyle& asked_style) {
    ResponseStyle style = asked_style;
    disconnected_ = false;
    reply->start([weak = weak_from_this(), strand = strand_,
                  weak_reply = std::weak_ptr<PendingReply>(reply)] {
      asio::post(strand, [weak, weak_reply] {
        const auto self = weak.lock();
        const auto pending = weak_reply.lock();
        if (!self || !pending) return;
        if (pending->has_overflown()) self->give_up(*pending);
        self->notify();
      });
    });
    watch(++watch_number_);
    bool is_streaming = false;
    for (;;) {
      if (disconnected_) break;
      PendingReply::Output output = reply->take();
      std::string bytes;
      if (output.head) {
        style.keep_alive = style.keep_alive && handler().keep_connections();
        if (!output.is_stream) co_return co_await respond(*output.head, style);
        style.keep_alive = style.keep_alive && style.is_http_1_1;
        note_response(output.head->status);
        bytes = format_stream_head(*output.head, style);
        is_streaming = true;
      }
      if (!output.stream_bytes.empty()) bytes += format_chunk(output.stream_bytes, style);
      if (output.finished) bytes += format_last_chunk(style);
      const bool is_written = co_await write(bytes);
      if (!is_written) break;
      if (output.finished) co_return style.keep_alive;
      if (output.has_more) {
        co_await asio::post(strand_, asio::use_awaitable);  // others on this thread go first
        continue;
      }
      const bool is_news =
          co_await wait_signal(is_streaming ? options().keep_alive_interval : milliseconds::zero());
      if (!is_news && !disconnected_) {
        const std::string comment = reply->keep_alive_bytes();
        if (comment.empty()) continue;
        const std::string chunk = format_chunk(comment, style);
        const bool is_comment_written = co_await write(chunk);
        if (!is_comment_written) break;
      }
    }
    outcome_.status = kClientGone;
    reply->cancel();
    co_return false;
  }

  /// A write may be waiting for a client that hardly reads: ends it.
  void give_up(PendingReply& reply) {
    reply.cancel();
    disconnected_ = true;
    close();
  }

  /// Sees the client close the connection while nothing is being read.
  void watch(int number) {
    socket_.async_wait(
        StreamSocket::wait_read, [self = shared_from_this(), number](const error_code& error) {
          if (number != self->watch_number_ || error == asio::error::operation_aborted) return;
          if (!error && self->take_pipelined()) return self->watch(number);
          if (!error && self->buffer_.size() >= kMaxPipelined) return;
          self->disconnected_ = true;
          self->notify();
        });
  }

  /// Keeps what the client sent ahead; false at its end, or when that is too much already.
  bool take_pipelined() {
    if (buffer_.size() >= kMaxPipelined) return false;
    const auto space = buffer_.prepare(4096);
    const ssize_t count = ::recv(socket_.native_handle(), space.data(), space.size(), MSG_DONTWAIT);
    if (count > 0) {
      buffer_.commit(static_cast<std::size_t>(count));
      return true;
    }
    return count < 0 && (errno == EAGAIN || errno == EINTR);
  }

  asio::awaitable<bool> respond(const HttpResponse& response, ResponseStyle style) {
    style.keep_alive = style.keep_alive && handler().keep_connections();
    note_response(response.status);
    const std::string bytes = format_response(response, style);
    const bool is_written = co_await write(bytes);
    co_return is_written&& style.keep_alive;
  }

  void note_response(int status) {
    outcome_.status = status;
    handler().on_response(current_, status);
  }

  /// What went wrong while reading a request.
  asio::awaitable<bool> fail(error_code error) {
    if (timed_out_) {
      co_return co_await refuse(408, "the request came too slowly");
    }
    if (error == http::error::header_limit) {
      co_return co_await refuse(431, "the request header is too large");
    }
    if (error == http::error::body_limit) {
      co_return co_await refuse(413, "the request body is too large");
    }
    if (error == http::error::end_of_stream || error == http::error::partial_message ||
        error.category() != make_error_code(http::error::end_of_stream).category()) {
      outcome_.status = kClientGone;
      co_return false;
    }
    co_return co_await refuse(400, "not a valid HTTP request: " + error.message());
  }

  asio::awaitable<bool> refuse(int status, std::string message) {
    const HttpResponse response = handler().transport_error(current_, status, message);
    const ResponseStyle style;
    co_return co_await refuse(response, style);
  }

  /// Answers a request whose rest was not read, then closes. Reads on for a while, because closing
  /// with unread bytes resets the connection and the client may lose the answer.
  asio::awaitable<bool> refuse(HttpResponse response, ResponseStyle style) {
    style.keep_alive = false;
    note_response(response.status);
    const std::string bytes = format_response(response, style);
    const bool is_written = co_await write(bytes);
    if (!is_written) co_return false;
    error_code error;
    socket_.shutdown(StreamSocket::shutdown_send, error);
    std::string sink(64U << 10, '\0');
    const auto end = std::chrono::steady_clock::now() + kLinger;
    std::int64_t left = 2 * options().max_body_bytes;
    arm(kLinger);
    while (!error && left > 0 && std::chrono::steady_clock::now() < end) {
      left -= static_cast<std::int64_t>(co_await socket_.async_read_some(
          asio::buffer(sink), asio::redirect_error(asio::use_awaitable, error)));
    }
    co_return false;
  }

  asio::awaitable<bool> write(std::string_view bytes) {
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kWritePiece);
      error_code error;
      arm(options().write_timeout);
      co_await asio::async_write(socket_, asio::buffer(piece.data(), piece.size()),
                                 asio::redirect_error(asio::use_awaitable, error));
      disarm();
      if (error) {
        outcome_.status = kClientGone;
        co_return false;
      }
      outcome_.num_bytes += std::ssize(piece);
      bytes.remove_prefix(piece.size());
    }
    co_return true;
  }

  /// Waits for notify(); false when `timeout` (zero: none) passed first.
  asio::awaitable<bool> wait_signal(milliseconds timeout) {
    if (!notified_) {
      if (timeout > milliseconds::zero()) {
        signal_.expires_after(timeout);
      } else {
        signal_.expires_at(asio::steady_timer::time_point::max());
      }
      error_code error;
      co_await signal_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
    const bool was_notified = notified_;
    notified_ = false;
    co_return was_notified;
  }
  void notify() {
    notified_ = true;
    signal_.cancel();
  }

  /// Cancels the socket's operations after `timeout` unless armed again or disarmed.
  void arm(milliseconds timeout) {
    timed_out_ = false;
    deadline_.expires_after(timeout);
    deadline_.async_wait([self = shared_from_this()](const error_code& error) {
      if (error || self->deadline_.expiry() > asio::steady_timer::clock_type::now()) return;
      self->timed_out_ = true;
      error_code ignored;
      self->socket_.cancel(ignored);
    });
  }
  void disarm() { deadline_.cancel(); }

  void close() {
    error_code ignored;
    socket_.shutdown(StreamSocket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  StreamSocket socket_;
  Strand strand_;
  std::shared_ptr<SessionContext> context_;
  asio::steady_timer deadline_;
  asio::steady_timer signal_;
  boost::beast::flat_buffer buffer_;
  HttpRequest current_;     // id, method and path of the request being served
  RequestOutcome outcome_;  // of it
  std::optional<HttpReply> worker_reply_;
  int watch_number_ = 0;
  bool is_idle_ = false;
  bool timed_out_ = false;
  bool notified_ = false;
  bool disconnected_ = false;
};

}  // namespace

std::shared_ptr<HttpSession> start_session(StreamSocket socket, Strand strand,
                                           std::shared_ptr<SessionContext> context) {
  auto session =
      std::make_shared<Session>(std::move(socket), std::move(strand), std::move(context));
  session->start();
  return session;
}

}  // namespace winnow::server
