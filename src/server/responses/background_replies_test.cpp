#include "server/responses/background_replies.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace winnow::server {
namespace {

constexpr auto kLong = std::chrono::seconds(10);
constexpr auto kShort = std::chrono::milliseconds(200);

/// Its only news come before start() returns and wake nobody.
class EarlyReply final : public PendingReply {
 public:
  void start(std::function<void()>) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kShort, [this] { return num_takes_ > 0; });
    has_ended_ = true;
  }
  Output take() override {
    const std::lock_guard lock(mutex_);
    ++num_takes_;
    is_over_ = has_ended_;
    changed_.notify_all();
    Output output;
    output.finished = has_ended_;
    return output;
  }
  void cancel() override {}
  void end_early() override {}
  std::string keep_alive_bytes() const override { return {}; }
  bool has_overflown() const override { return false; }

  bool wait_until_over() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLong, [this] { return is_over_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_takes_ = 0;
  bool has_ended_ = false, is_over_ = false;
};

TEST(BackgroundReplies, WhatComesBeforeTheWakeIsSetIsTaken) {
  BackgroundReplies replies;
  const auto reply = std::make_shared<EarlyReply>();
  replies.add(reply);
  EXPECT_TRUE(reply->wait_until_over());
}

}  // namespace
}  // namespace winnow::server
