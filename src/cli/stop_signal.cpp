#include "cli/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

namespace winnow::cli {
namespace {

constexpr int kExitOnSecond = 130;

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

StopSignal::StopSignal(std::function<void()> on_first) : on_first_(std::move(on_first)) {
  ::signal(SIGPIPE, SIG_IGN);
  const sigset_t set = watched_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { watch(); });
}

StopSignal::~StopSignal() {
  is_ending_ = true;
  // NOLINTNEXTLINE(bugprone-bad-signal-to-kill-thread): it is blocked and only wakes sigwait.
  ::pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void StopSignal::watch() {
  const sigset_t set = watched_signals();
  for (;;) {
    int number = 0;
    if (::sigwait(&set, &number) != 0) return;
    if (is_ending_) return;
    if (is_set_.exchange(true)) ::_exit(kExitOnSecond);
    if (on_first_) on_first_();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
}

bool StopSignal::wait_for(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [this] { return is_set_.load(); });
}

}  // namespace winnow::cli
