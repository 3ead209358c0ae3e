// An engine without a model: each choice repeats a fixed text's tokens (or echoes its prompt) at a
// chosen pace. For tests of the server.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "server/generation.h"

namespace winnow::server::testing {

struct FakeEngineOptions {
  std::vector<TokenId> answer;  // what every choice says, then eos
  TokenId eos = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_queued = 16;  // running and waiting together
  std::chrono::microseconds step{200};
  bool fail_steps = false;  // every request ends with kError
  bool hold = false;        // nothing moves until release()
};

class FakeEngine final : public EngineClient {
 public:
  explicit FakeEngine(FakeEngineOptions options);
  ~FakeEngine() override;

  Engine::Submitted submit(GenerationRequest request) override;
  void abort(RequestId id) override;
  void stop_choice(RequestId id, std::int32_t choice) override;
  EngineStats stats() const override;

  void release();
  void abort_all();
  /// As after a lost device.
  void break_down();
  int num_aborted() const;
  /// The last request submitted.
  GenerationRequest last_request() const;

 private:
  struct Running;
  void work();
  void step(Running& request);

  FakeEngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Running> running_;
  GenerationRequest last_;
  EngineStats stats_;
  RequestId next_id_ = 1;
  int num_aborted_ = 0;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace winnow::server::testing
