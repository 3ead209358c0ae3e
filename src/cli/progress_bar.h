// One line on stderr that shows how far a long job is; silent when stderr is no terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace winnow {

/// "quantising [######----]  60 %  3.10 of 5.17 GB, 812 MB/s". Redrawn at most ten times a second;
/// the line is cleared when the object dies, so that what follows starts on an empty line.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  /// As above with the terminal question answered (tests).
  ProgressBar(std::string title, bool is_terminal);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t done_bytes, std::int64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  bool is_terminal_;
  bool is_drawn_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_draw_;
};

/// The line itself, without control characters.
std::string progress_line(std::string_view title, std::int64_t done_bytes, std::int64_t total_bytes,
                          double seconds);

}  // namespace winnow
