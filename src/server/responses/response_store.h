// Running and finished responses by id, for previous_response_id and GET /v1/responses/{id}. In
// memory, bounded by count, bytes and age; the least recently used go first. A caller sees its own
// only. Source: spec/serving.md 2.6.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/json_fields.h"

namespace winnow::server {

struct ResponseStoreLimits {
  std::int64_t max_responses = 1000;  // 0: nothing is stored
  std::int64_t max_bytes = 256LL << 20;
  std::chrono::seconds max_age{3600};
};

/// The items that one response added to its conversation, and those before. Immutable, any thread.
/// Responses that go on from the same one share it, and its bytes count once.
class ConversationTurn {
 public:
  using Total = std::shared_ptr<std::atomic<std::int64_t>>;

  /// `input` and `output` are JSON lists.
  ConversationTurn(std::shared_ptr<const ConversationTurn> before, std::string input,
                   std::string output, Total total_bytes);
  ~ConversationTurn();
  ConversationTurn(const ConversationTurn&) = delete;
  ConversationTurn& operator=(const ConversationTurn&) = delete;

  /// All that was said up to here, or only what the last response was asked; oldest first.
  Json items() const;
  Json input_items() const;

 private:
  mutable std::shared_ptr<const ConversationTurn> before_;  // the destructor unlinks long chains
  std::string input_;
  std::string output_;
  Total total_bytes_;
};

/// Any thread.
class ResponseStore {
 public:
  explicit ResponseStore(const ResponseStoreLimits& limits) : limits_(limits) {}

  /// What one response leaves behind.
  struct Record {
    std::string id;
    std::string caller;  // caller_of() the request
    std::string body;    // the response object
    std::shared_ptr<const ConversationTurn> turn;
    std::function<void()> stop;  // while it runs; any thread
  };

  void begin(Record running);
  /// Replaces a running one; nothing when it was deleted or pushed out meanwhile.
  void finish(const std::string& id, std::string body,
              std::shared_ptr<const ConversationTurn> turn);
  /// A running one that will have no end.
  void forget(const std::string& id);

  /// nullopt: none of that id, or another caller's.
  std::optional<Record> find(const std::string& id, std::string_view caller);
  [[nodiscard]] bool erase(const std::string& id, std::string_view caller);

  const ConversationTurn::Total& turn_bytes() const { return turn_bytes_; }
  std::int64_t num_bytes() const;
  std::int64_t num_responses() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    Record record;
    Clock::time_point made;
  };
  using Entries = std::list<Entry>;

  Entries::iterator lookup(const std::string& id);
  void remove(Entries::iterator entry);
  void shrink();

  ResponseStoreLimits limits_;
  ConversationTurn::Total turn_bytes_ = std::make_shared<std::atomic<std::int64_t>>(0);
  mutable std::mutex mutex_;
  Entries entries_;  // the most recently used first
  std::map<std::string, Entries::iterator> by_id_;
  std::int64_t body_bytes_ = 0;
};

}  // namespace winnow::server
