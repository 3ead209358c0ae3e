// What passes between the HTTP layer (sockets, Beast) and the API handlers, which know neither.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/log_field.h"

namespace winnow::server {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string id;      // of the handler, for its log and for answers
  std::string method;  // upper case
  std::string path;    // percent-decoded, without the query
  std::string query;   // raw, without '?'
  HeaderList headers;  // names in lower case
  std::string body;

  /// The first header of that (lower-case) name, or empty.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  HeaderList headers = {};
};

/// A response that another thread produces over time. The session calls start(), take() and
/// cancel() on its strand; `wake` may be called from any thread and only schedules a take().
class PendingReply {
 public:
  struct Output {
    /// Set once: a whole response (then `finished`), or the head of a stream.
    std::optional<HttpResponse> head;
    bool is_stream = false;    // with head: body follows in pieces
    std::string stream_bytes;  // the next pieces of the body
    bool has_more = false;     // take again at once, there will be no wake for it
    bool finished = false;
  };

  virtual ~PendingReply() = default;
  virtual void start(std::function<void()> wake) = 0;
  virtual Output take() = 0;
  /// The client has gone or is too slow: stop producing, free everything. Idempotent.
  virtual void cancel() = 0;
  /// Any thread: what is being made ends now, and the reply tells so.
  virtual void end_early() {}
  /// Any thread: the client reads so slowly that its output no longer fits; the session ends it.
  virtual bool has_overflown() const { return false; }
  /// What the log line of the request tells besides HTTP; asked for once it has ended.
  virtual std::vector<LogField> log_fields() const { return {}; }
  /// Bytes to write when the stream has been silent for a while; empty: none.
  virtual std::string keep_alive_bytes() const = 0;
};

using HttpReply = std::variant<HttpResponse, std::shared_ptr<PendingReply>>;

/// How a request went, as its log line tells.
struct RequestOutcome {
  int status = 0;  // 499: the client went away before the response was complete
  std::int64_t num_bytes = 0;
  double seconds = 0;  // from the complete header to the last byte
  std::vector<LogField> fields;
};

/// The application behind the sockets. Called from several threads at once; never throws.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// Asked when the header is complete and the body not yet read: a response refuses the request.
  virtual std::optional<HttpResponse> check_head(const HttpRequest& head) = 0;
  /// True when handle() is quick and may run on the I/O thread.
  virtual bool is_quick(const HttpRequest& request) = 0;
  virtual HttpReply handle(HttpRequest request) = 0;
  /// What HttpRequest::id becomes: the client's own, or a new one.
  virtual std::string request_id(const HttpRequest& head) = 0;
  /// Headers for every response to this request (CORS, request id).
  virtual HeaderList response_headers(const HttpRequest& request) = 0;
  /// The body for a request that never reached handle(): broken HTTP, too large, too slow. Of
  /// `head` method and path are known, or not even they.
  virtual HttpResponse transport_error(const HttpRequest& head, int status,
                                       std::string_view message) = 0;
  /// The status line of a response is about to be written.
  virtual void on_response(const HttpRequest& head, int status) = 0;
  /// The last byte is written, or the client has gone.
  virtual void on_finished(const HttpRequest& head, const RequestOutcome& outcome) = 0;
  /// False while the process drains: responses then close their connection.
  virtual bool keep_connections() = 0;
};

/// Decodes %XX; nullopt for broken escapes and for an encoded NUL.
std::optional<std::string> percent_decode(std::string_view text);

/// The first value of `name` in a query string, decoded.
std::optional<std::string> query_parameter(std::string_view query, std::string_view name);

}  // namespace winnow::server
