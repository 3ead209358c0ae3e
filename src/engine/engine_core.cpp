#include "engine/engine_core.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "engine/speculate/measure_costs.h"

namespace winnow {
namespace {

using Seconds = std::chrono::duration<double>;

std::int64_t logits_bytes(const EngineOptions& options, const ModelRunner& runner) {
  const LogitRows rows = max_logit_rows(options, runner.vocab_size());
  return (std::int64_t{rows.max_sampled} + rows.max_prompt) * runner.vocab_size() * 4;
}

}  // namespace

EngineCore::EngineCore(const EngineOptions& options, ModelRunner& runner, StepObserver* observer)
    : options_(options),
      runner_(runner),
      observer_(observer),
      scheduler_(options_, runner, max_logit_rows(options_, runner.vocab_size()).max_prompt,
                 stats_),
      planner_(options_.speculation),
      proposer_(options_.speculation, runner, planner_),
      logits_(logits_bytes(options_, runner), "logits"),
      masks_(runner),
      mask_worker_(runner.vocab_size()) {
  const std::vector<double>& rates = options_.speculation.synthetic_rates;
  if (!rates.empty()) synthetic_.emplace(rates);
}

EngineCore::~EngineCore() { abort_all(); }

void EngineCore::submit(RequestId id, GenerationRequest request, Clock::time_point arrival) {
  auto state = std::make_unique<RequestState>();
  state->id = id;
  state->stats.arrival = arrival;
  state->stats.num_prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  state->request = std::move(request);
  GenerationRequest& kept = state->request;
  state->rules = std::make_unique<SampleRules>(kept.sampling, options_.stop_token_ids,
                                               static_cast<std::uint64_t>(options_.seed) + id);
  state->choices.resize(static_cast<std::size_t>(kept.sampling.n));
  state->num_unfinished = kept.sampling.n;
  if (kept.sampling.prompt_logprobs) state->prompt_logprobs.resize(kept.prompt.size());
  if (kept.adapter != nullptr) ++stats_.adapters[kept.adapter_name].num_waiting;
  if (kept.deadline) next_deadline_ = std::min(next_deadline_, *kept.deadline);

  auto lead = std::make_unique<Sequence>();
  lead->request = state.get();
  lead->tokens = std::move(kept.prompt);
  lead->num_prompt = lead->num_tokens();
  scheduler_.add(*lead);
  state->sequences.push_back(std::move(lead));
  requests_.emplace(id, std::move(state));
}

void EngineCore::abort(RequestId id) {
  const auto found = requests_.find(id);
  if (found != requests_.end()) end_request(*found->second, {.reason = FinishReason::kAbort});
  sweep();
}

void EngineCore::stop_choice(RequestId id, std::int32_t choice) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  RequestState& request = *found->second;
  if (choice < 0 || choice >= std::ssize(request.choices)) return;
  if (request.choices[static_cast<std::size_t>(choice)].is_finished) return;
  end_choice(request, choice, {.reason = FinishReason::kStop}, {.choice = choice});
  sweep();
}

void EngineCore::abort_all() {
  for (auto& [id, request] : requests_) end_request(*request, {.reason = FinishReason::kAbort});
  sweep();
}

bool EngineCore::reset_prefix_cache(bool force) { return scheduler_.reset_prefix_cache(force); }

/// What is cached without drafts has no context for a drafter.
bool EngineCore::set_drafting(bool is_on) {
  if (has_work() || !scheduler_.reset_prefix_cache(/*force=*/false)) return false;
  planner_.pause(!is_on);
  return true;
}

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.num_running = scheduler_.num_running();
  stats.num_waiting = scheduler_.num_waiting();
  stats.num_blocks = scheduler_.pool().num_blocks();
  stats.num_free_blocks = scheduler_.pool().num_free();
  return stats;
}

void EngineCore::prepare() {
  const SpeculationOptions& speculation = options_.speculation;
  if (speculation.num_drafts == 0 || !planner_.wants_costs()) return;
  try {
    const StepCosts costs =
        measure_step_costs(runner_, {.num_drafts = speculation.num_drafts,
                                     .max_tokens = options_.max_num_batched_tokens,
                                     .max_sequences = options_.max_num_seqs,
                                     .max_model_len = options_.max_model_len});
    planner_.set_costs(costs);
    const auto& verify = costs.verify_times.empty() ? costs.step_times : costs.verify_times;
    spdlog::info(
        "lengths by measure: a step of one token takes {:.3f} ms, of {} with drafts {:.3f} ms; a "
        "drafter's pass {:.3f} ms and {:.3f} ms for each slot",
        costs.step_times.front().seconds * 1e3, verify.back().count, verify.back().seconds * 1e3,
        costs.draft_times.front().seconds * 1e3, costs.draft_slot_seconds * 1e3);
  } catch (const std::exception& error) {
    spdlog::error("measuring steps failed, {} tokens are drafted whatever they cost: {}",
                  speculation.num_drafts, error.what());
  }
}

void EngineCore::step() {
  expire_deadlines();
  if (requests_.empty()) return;
  const Clock::time_point begin = Clock::now();
  const std::span<const Chunk> chunks = scheduler_.plan(planner_);
  note_first_admissions(chunks);
  const Clock::time_point planned = Clock::now();
  proposer_.propose(chunks);
  const Seconds draft_time = Clock::now() - planned;
  batch_.build(chunks);
  list_jobs();
  make_first_states();
  plan_draws();
  if (run_batch(chunks)) {
    ++stats_.num_steps;
    note_first_draws();
    run_jobs();
    count_late_masks();
    planner_.observe(chunks);
    const Clock::time_point verified = Clock::now();
    proposer_.commit_context(batch_.batch(), chunks);
    const Seconds context_time = Clock::now() - verified;
    for (const Chunk& chunk : chunks) scheduler_.commit(chunk);
    finish_prompts(chunks);
    deliver_jobs();
    const Seconds elapsed = Clock::now() - begin;
    scheduler_.observe_step(elapsed.count());
    planner_.observe_step({.target = (elapsed - draft_time - context_time).count(),
                           .draft = draft_time.count(),
                           .context = context_time.count()},
                          chunks);
    if (observer_ != nullptr) {
      observer_->on_step(static_cast<std::int32_t>(batch_.batch().tokens.size()),
                         static_cast<std::int32_t>(chunks.size()), elapsed.count());
    }
  }
  sweep();
#ifndef NDEBUG
  if (requests_.empty()) check_integrity();
#endif
}

void EngineCore::expire_deadlines() {
  const Clock::time_point now = Clock::now();
  if (now < next_deadline_) return;
  next_deadline_ = Clock::time_point::max();
  for (auto& [id, request] : requests_) {
    const std::optional<Clock::time_point> deadline = request->request.deadline;
    if (!deadline) continue;
    if (*deadline > now) {
      next_deadline_ = std::min(next_deadline_, *deadline);
    } else if (request->is_admitted) {
      end_request(*request, {.reason = FinishReason::kAbort});
    } else {
      end_request(*request, {.reason = FinishReason::kError,
                             .code = ErrorCode::kUnavailable,
                             .message = "the request's deadline passed while it was queued"});
    }
  }
  sweep();
}

void EngineCore::note_first_admissions(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) dequeue(*chunk.sequence->request);
}

void EngineCore::dequeue(RequestState& request) {
  if (request.has_left_queue) return;
  request.has_left_queue = true;
  ++num_dequeued_requests_;
  num_dequeued_tokens_ += request.stats.num_prompt_tokens;
  if (request.request.adapter == nullptr) return;
  AdapterLoad& load = stats_.adapters[request.request.adapter_name];
  --load.num_waiting;
  ++load.num_running;
}

void EngineCore::leave_adapter(const GenerationRequest& request) {
  if (request.adapter == nullptr) return;
  const auto found = stats_.adapters.find(request.adapter_name);
  if (--found->second.num_running == 0 && found->second.num_waiting == 0) {
    stats_.adapters.erase(found);
  }
}

/// The one place that catches what a step throws.
bool EngineCore::run_batch(std::span<const Chunk> chunks) {
  std::optional<Ending> failure;
  try {
    begin_masks();
    run_runner();
  } catch (const Error& error) {
    failure = Ending{.code = error.code(), .message = error.text()};
  } catch (const std::exception& error) {
    failure = Ending{.message = error.what()};
  }
  stats_.num_masks_ahead += mask_worker_.end();
  if (!failure) return true;
  fail_step(chunks, failure->code, failure->message);
  return false;
}

void EngineCore::run_runner() {
  const std::size_t num_rows = batch_.batch().logit_rows.size();
  const bool wants_rows =
      draws_.empty() || std::ranges::count(wants_row_, 0) < std::ssize(wants_row_);
  float* const room =
      wants_rows ? runner_.logits_room(static_cast<std::int64_t>(num_rows)) : nullptr;
  const std::span<float> logits(room != nullptr ? room : logits_.as<float>(),
                                num_rows * static_cast<std::size_t>(runner_.vocab_size()));
  step_logits_ = logits.data();
  if (draws_.empty()) {
    runner_.run(batch_.batch(), logits);
    return;
  }
  drawn_.assign(draws_.size(), {});
  runner_.run_and_draw(
      batch_.batch(),
      {.draws = draws_, .drawn = drawn_, .wants_row = wants_row_, .logits = logits});
}

void EngineCore::fail_step(std::span<const Chunk> chunks, ErrorCode code,
                           const std::string& message) {
  spdlog::error("a step of {} sequences failed: {}", chunks.size(), message);
  ++stats_.num_failed_steps;
  // The chunks live in the scheduler and do not change while sequences are taken out of it.
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    RequestState& request = *sequence.request;
    const Ending ending{.reason = FinishReason::kError, .code = code, .message = message};
    if (!request.has_sampled) {
      end_request(request, ending);
    } else if (sequence.phase != SequencePhase::kEnded) {
      end_choice(request, sequence.choice, ending, {.choice = sequence.choice});
    }
  }
  if (runner_.is_healthy()) return;
  stats_.is_broken = true;
  for (auto& [id, request] : requests_) {
    end_request(*request, {.reason = FinishReason::kError,
                           .code = ErrorCode::kUnavailable,
                           .message = "the engine cannot go on after a failed step"});
  }
}

void EngineCore::attach_prompt_logprobs(RequestState& request, OutputUpdate& update) {
  if (update.choice == 0) update.prompt_logprobs = std::move(request.prompt_logprobs);
}

void EngineCore::end_choice(RequestState& request, std::int32_t choice, const Ending& ending,
                            OutputUpdate&& update) {
  ChoiceState& state = request.choices[static_cast<std::size_t>(choice)];
  WINNOW_ASSERT(!state.is_finished, "a choice ends once", request.id, choice);
  state.is_finished = true;
  --request.num_unfinished;
  drop_sequence(request, choice);
  update.finish_reason = ending.reason;
  if (ending.reason == FinishReason::kError) {
    update.error_code = ending.code;
    update.error = ending.message;
  }
  request.request.on_update(std::move(update));
  if (request.num_unfinished > 0) return;
  dequeue(request);
  leave_adapter(request.request);
  request.stats.finished = Clock::now();
  if (request.request.on_done) request.request.on_done(request.stats);
  ++num_ended_requests_;
  ended_.push_back(request.id);
}

void EngineCore::end_request(RequestState& request, const Ending& ending) {
  for (std::int32_t choice = 0; choice < std::ssize(request.choices); ++choice) {
    if (request.choices[static_cast<std::size_t>(choice)].is_finished) continue;
    end_choice(request, choice, ending, {.choice = choice});
  }
}

/// The lead of a prompt in progress stays as long as any choice is wanted.
void EngineCore::drop_sequence(RequestState& request, std::int32_t choice) {
  for (const std::unique_ptr<Sequence>& sequence : request.sequences) {
    const bool is_of_choice = request.has_sampled && sequence->choice == choice;
    if ((!is_of_choice && request.num_unfinished > 0) || sequence->phase == SequencePhase::kEnded)
      continue;
    scheduler_.remove(*sequence);
    sequence->tokens = {};
  }
}

void EngineCore::sweep() {
  for (const RequestId id : ended_) requests_.erase(id);
  ended_.clear();
}

}  // namespace winnow
