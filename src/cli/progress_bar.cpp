#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "checkpoint/inspect.h"

namespace winnow {

namespace {

constexpr int kBarWidth = 30;

}  // namespace

std::string progress_line(std::string_view title, std::int64_t done_bytes, std::int64_t total_bytes,
                          double seconds) {
  const double share =
      total_bytes > 0
          ? std::clamp(static_cast<double>(done_bytes) / static_cast<double>(total_bytes), 0., 1.)
          : 1.;
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  std::string bar(kBarWidth, '-');
  std::fill_n(bar.begin(), filled, '#');
  const double rate = seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0.;
  return fmt::format("{} [{}] {:3} %  {} of {}, {}/s", title, bar, static_cast<int>(share * 100),
                     bytes_text(done_bytes), bytes_text(total_bytes),
                     bytes_text(static_cast<std::int64_t>(rate)));
}

ProgressBar::ProgressBar(std::string title) : ProgressBar(std::move(title), ::isatty(2) == 1) {}

ProgressBar::ProgressBar(std::string title, bool is_terminal)
    : title_(std::move(title)), is_terminal_(is_terminal) {}

ProgressBar::~ProgressBar() {
  if (is_drawn_) std::fputs("\r\033[K", stderr);  // erases the line
}

void ProgressBar::update(std::int64_t done_bytes, std::int64_t total_bytes) {
  const Clock::time_point now = Clock::now();
  if (!is_terminal_ || now - last_draw_ < std::chrono::milliseconds(100)) return;
  last_draw_ = now;
  is_drawn_ = true;
  const std::chrono::duration<double> took = now - begin_;
  fmt::print(stderr, "\r\033[K{}", progress_line(title_, done_bytes, total_bytes, took.count()));
  std::fflush(stderr);
}

}  // namespace winnow
