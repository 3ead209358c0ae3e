// Loads of adapters that clients ask for, on a thread of their own: reading some hundred megabytes
// holds up no other request.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/adapters/adapter_registry.h"
#include "server/http_message.h"

namespace winnow::server {

/// Any thread.
class AdapterLoads {
 public:
  AdapterLoads() = default;
  ~AdapterLoads() { stop(); }
  AdapterLoads(const AdapterLoads&) = delete;
  AdapterLoads& operator=(const AdapterLoads&) = delete;

  /// One after the other; `registry` is there until stop(). Throws Error{kQueueFull}. A client that
  /// leaves does not end its load.
  std::shared_ptr<PendingReply> add(AdapterRegistry& registry, AdapterRegistry::Load load);
  /// Waits for the load in progress and refuses the others.
  void stop();

 private:
  class Reply;
  struct Job {
    AdapterRegistry* registry;
    AdapterRegistry::Load load;
    std::shared_ptr<Reply> reply;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool is_stopping_ = false;
  std::thread thread_;  // starts with the first job
};

/// An error of the adapter routes as their clients know it.
HttpResponse adapter_error(const Error& error);

}  // namespace winnow::server
