// Replies that nobody waits for: a thread of its own takes their output until they end.
#pragma once

#include <memory>

#include "server/http_message.h"

namespace winnow::server {

/// Any thread.
class BackgroundReplies {
 public:
  BackgroundReplies();
  ~BackgroundReplies();
  BackgroundReplies(const BackgroundReplies&) = delete;
  BackgroundReplies& operator=(const BackgroundReplies&) = delete;

  void add(std::shared_ptr<PendingReply> reply);
  /// Cancels what still runs and joins the thread; nothing is taken after it. Idempotent.
  void stop();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // also of wakes that come late
};

}  // namespace winnow::server
