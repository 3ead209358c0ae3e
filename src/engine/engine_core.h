// The engine without its thread: requests, scheduler, pool and runner, moved forward one step at a
// time. Everything here runs on one thread; Engine puts a mailbox and a loop around it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "engine/draft_planner.h"
#include "engine/draft_proposer.h"
#include "engine/engine.h"
#include "engine/planned_batch.h"
#include "engine/sample/device_draw.h"
#include "engine/sample/mask_worker.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/speculate/synthetic.h"

namespace winnow {

/// Rows of logits one step may need: admission and the logits buffer share this formula.
struct LogitRows {
  std::int32_t max_sampled = 0;  // one per running sequence and one per draft
  std::int32_t max_prompt = 0;   // for prompt log-probabilities
};
LogitRows max_logit_rows(const EngineOptions& options, std::int32_t vocab_size);

/// Throws Error{kInvalidArgument} for options that cannot work with this runner.
void validate_options(const EngineOptions& options, const ModelRunner& runner);

/// Throws Error{kInvalidArgument} for a request that can never run.
void validate_request(const GenerationRequest& request, const EngineOptions& options,
                      const ModelRunner& runner);

class EngineCore {
 public:
  /// The options have passed validate_options(). `runner` and `observer` (may be null) outlive it.
  EngineCore(const EngineOptions& options, ModelRunner& runner, StepObserver* observer);
  ~EngineCore();

  /// The request has passed validate_request(); ids rise from call to call.
  void submit(RequestId id, GenerationRequest request, Clock::time_point arrival);
  void abort(RequestId id);
  void stop_choice(RequestId id, std::int32_t choice);
  void abort_all();
  bool reset_prefix_cache(bool force);
  bool set_drafting(bool is_on);

  /// On the thread of the steps, before the first: measures what adaptive drafting needs to know.
  void prepare();

  bool has_work() const { return !requests_.empty(); }
  /// One step of whatever is to be done; requests whose deadline has passed end first. What the
  /// runner throws ends the sequences of this step and nothing else.
  void step();

  EngineStats stats() const;
  /// Requests, and tokens of their prompts, that ever left the queue: admitted, or ended before.
  std::int64_t num_dequeued_requests() const { return num_dequeued_requests_; }
  std::int64_t num_dequeued_tokens() const { return num_dequeued_tokens_; }
  std::int64_t num_ended_requests() const { return num_ended_requests_; }

  /// Asserts that every block reference belongs to a running sequence and nothing is lost.
  void check_integrity() const { scheduler_.check_integrity(); }

 private:
  /// One row's work for the sampler, independent of all others.
  struct RowJob {
    RowUse use;
    std::int32_t choice = 0;
    bool starts_choice = false;  // draws its first token
    std::int32_t draw = -1;      // what the runner draws, one a row; -1: sampled here
    Sample sample{};

    /// Of the rows from `use` on, one more than there are drafts.
    bool is_verification() const {
      return !use.is_prompt_row && use.chunk->sequence->draft.size() > 0;
    }
  };
  struct Ending {
    FinishReason reason = FinishReason::kNone;
    ErrorCode code = ErrorCode::kInternal;
    std::string message{};
  };

  void expire_deadlines();
  void note_first_admissions(std::span<const Chunk> chunks);
  void list_jobs();
  void plan_draws();
  bool plan_draws_of(const RowJob& job);
  bool plan_row_draw(const SampleRules& rules, std::uint32_t choice, const Sequence& sequence,
                     std::int32_t row);
  bool run_batch(std::span<const Chunk> chunks);
  void run_runner();
  void begin_masks();
  void count_late_masks();
  void fail_step(std::span<const Chunk> chunks, ErrorCode code, const std::string& message);
  void make_first_states();
  void note_first_draws();
  void run_jobs();
  void run_job(RowJob& job, VerifyScratch& scratch);
  void run_verification(RowJob& job, VerifyScratch& scratch);
  void run_prompt_row(RowJob& job, std::span<const float> logits, SampleScratch& scratch);
  void finish_prompts(std::span<const Chunk> chunks);
  void deliver_jobs();
  void deliver_choices(std::size_t begin, std::size_t end);
  void deliver_verified(RowJob& job);
  void deliver_token(RequestState& request, Sequence* sequence, RowJob& job,
                     std::int32_t num_output);
  std::vector<std::int32_t> kept_blocks_of(std::int32_t row) const;
  void start_choice(RequestState& request, std::int32_t choice, TokenId first_token);
  Ending sample_error(const RowJob& job);

  void end_choice(RequestState& request, std::int32_t choice, const Ending& ending,
                  OutputUpdate&& update);
  void end_request(RequestState& request, const Ending& ending);
  void drop_sequence(RequestState& request, std::int32_t choice);
  void attach_prompt_logprobs(RequestState& request, OutputUpdate& update);
  void dequeue(RequestState& request);
  void leave_adapter(const GenerationRequest& request);
  void sweep();

  EngineOptions options_;
  ModelRunner& runner_;
  StepObserver* observer_;
  EngineStats stats_;
  Scheduler scheduler_;
  DraftPlanner planner_;
  DraftProposer proposer_;
  std::optional<SyntheticAcceptance> synthetic_;
  PlannedBatch batch_;
  Buffer logits_;  // fp32 [max_sampled + max_prompt][vocab_size], touched as far as needed
  const float* step_logits_ = nullptr;  // of this step: there, or where the runner has room
  std::vector<RowJob> jobs_;
  TokenMasks masks_;
  MaskWorker mask_worker_;
  std::vector<MaskWorker::Task> mask_tasks_;
  std::vector<ops::Draw> draws_;  // of jobs_ that the runner can do
  std::vector<ops::Drawn> drawn_;
  std::vector<std::uint8_t> wants_row_;  // per row of logits
  std::vector<VerifyScratch> scratch_;   // one per thread of the pool

  std::map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<RequestId> ended_;  // to be swept once nothing of this step refers to them
  Clock::time_point next_deadline_ = Clock::time_point::max();  // no deadline is earlier
  std::int64_t num_dequeued_requests_ = 0;
  std::int64_t num_dequeued_tokens_ = 0;
  std::int64_t num_ended_requests_ = 0;
};

}  // namespace winnow
