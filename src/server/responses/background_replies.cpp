#include "server/responses/background_replies.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/log.h"

namespace winnow::server {

struct BackgroundReplies::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::shared_ptr<PendingReply>> replies;
  std::set<int> woken;
  int next_number = 0;
  bool is_stopping = false;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_stopping || !woken.empty(); });
      if (is_stopping) return;
      const int number = woken.extract(woken.begin()).value();
      const auto found = replies.find(number);
      if (found == replies.end()) continue;
      const std::shared_ptr<PendingReply> reply = found->second;
      lock.unlock();
      const bool is_over = take_all(*reply);
      lock.lock();
      if (is_over) replies.erase(number);
    }
  }

  static bool take_all(PendingReply& reply) {
    try {
      for (;;) {
        const PendingReply::Output output = reply.take();
        if (output.finished) return true;
        if (!output.has_more) return false;
      }
    } catch (const std::exception& error) {
      spdlog::error("a background response failed: {}", error.what());
      reply.cancel();
      return true;
    }
  }
};

BackgroundReplies::BackgroundReplies() : shared_(std::make_shared<Shared>()) {}

BackgroundReplies::~BackgroundReplies() { stop(); }

void BackgroundReplies::add(std::shared_ptr<PendingReply> reply) {
  int number = 0;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->is_stopping) return;  // the caller's reference was the last: it is cancelled
    if (!shared_->thread.joinable()) {
      shared_->thread = std::thread([shared = shared_.get()] { shared->run(); });
    }
    number = shared_->next_number++;
    shared_->replies[number] = reply;
  }
  const auto wake = [shared = shared_, number] {
    const std::lock_guard lock(shared->mutex);
    shared->woken.insert(number);
    shared->changed.notify_one();
  };
  reply->start(wake);
  wake();  // for what came before; not earlier, or what comes until start() is never taken
}

void BackgroundReplies::stop() {
  std::thread thread;
  std::map<int, std::shared_ptr<PendingReply>> rest;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->is_stopping = true;
    thread = std::move(shared_->thread);
    shared_->changed.notify_all();
  }
  if (thread.joinable()) thread.join();
  {
    const std::lock_guard lock(shared_->mutex);
    rest = std::exchange(shared_->replies, {});
  }
  for (const auto& [number, reply] : rest) reply->cancel();
}

}  // namespace winnow::server
