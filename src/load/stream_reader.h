// Reads a streamed reply as any server may cut it: bytes to events, events to what was said when.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace winnow::load {

/// How a request went. Times in seconds since it was sent.
struct RequestRecord {
  struct Piece {
    double at = 0;
    std::size_t num_bytes = 0;  // of text
  };
  bool success = false;
  int status = 0;     // of HTTP; 0: no reply
  std::string error;  // why not
  std::chrono::steady_clock::time_point sent;
  double start = 0;           // `sent` since the start of the run
  double latency = 0;         // to the last event of the answer
  std::vector<Piece> pieces;  // events with text, in order
  bool has_usage = false;     // the server counted the tokens
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::string text;

  /// To the first piece; of an answer without text to its end.
  double first_token() const { return pieces.empty() ? latency : pieces.front().at; }
};

/// Server-sent events out of bytes in pieces of any size, with any of the three line ends.
class EventReader {
 public:
  explicit EventReader(std::function<void(std::string_view)> on_data)
      : on_data_(std::move(on_data)) {}
  /// False when an event grows beyond all sense.
  [[nodiscard]] bool add(std::string_view bytes);

 private:
  void end_line();

  std::function<void(std::string_view)> on_data_;
  std::string line_;
  std::string data_;  // `data` lines of the event, joined by line breaks
  bool has_data_ = false;
  bool was_return_ = false;  // the last byte was a '\r': a '\n' now ends nothing
};

/// Fills a record from the events of a chat or text completion.
class ReplyReader {
 public:
  explicit ReplyReader(RequestRecord& record) : record_(record) {}
  void add_event(std::string_view data, double now);
  /// The bytes have ended: sets `success`, or `error` if there is none yet.
  void finish();

 private:
  void fail(std::string_view what);

  RequestRecord& record_;
  bool is_done_ = false;      // "[DONE]"
  bool is_finished_ = false;  // a choice had a finish_reason
};

/// What an error body says, shortened: the message of its JSON, else its first bytes.
std::string error_text(int status, std::string_view body);

}  // namespace winnow::load
