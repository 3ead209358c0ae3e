#include "engine/engine_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "engine/sample/logprobs.h"
#include "engine/sample/row_kernels.h"

namespace winnow {
namespace {

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
      proposer_(options_.speculation, runner),
      logits_(logits_bytes(options_, runner), "logits"),
      masks_(runner) {}

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

EngineStats EngineCore::stats() const {
  EngineStats stats = stats_;
  stats.num_running = scheduler_.num_running();
  stats.num_waiting = scheduler_.num_waiting();
  stats.num_blocks = scheduler_.pool().num_blocks();
  stats.num_free_blocks = scheduler_.pool().num_free();
  return stats;
}

void EngineCore::step() {
  expire_deadlines();
  if (requests_.empty()) return;
  const Clock::time_point begin = Clock::now();
  const std::span<const Chunk> chunks = scheduler_.plan(proposer_.max_drafts());
  note_first_admissions(chunks);
  proposer_.propose(chunks);
  batch_.build(chunks);
  list_jobs();
  plan_draws();
  if (run_batch(chunks)) {
    ++stats_.num_steps;
    start_choices();
    run_jobs();
    proposer_.commit_context(batch_.batch(), chunks);
    for (const Chunk& chunk : chunks) scheduler_.commit(chunk);
    finish_prompts(chunks);
    deliver_jobs();
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    scheduler_.observe_step(elapsed.count());
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
}

/// The one place that catches what a step throws.
bool EngineCore::run_batch(std::span<const Chunk> chunks) {
  try {
    run_runner();
    return true;
  } catch (const Error& error) {
    fail_step(chunks, error.code(), error.text());
  } catch (const std::exception& error) {
    fail_step(chunks, ErrorCode::kInternal, error.what());
  }
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

/// Before the step runs: nothing but the list changes.
void EngineCore::list_jobs() {
  jobs_.clear();
  for (const RowUse& use : batch_.rows()) {
    const Sequence& sequence = *use.chunk->sequence;
    const RequestState& request = *sequence.request;
    if (use.is_prompt_row || request.has_sampled) {
      jobs_.push_back({.use = use, .choice = sequence.choice});
      continue;
    }
    // The prompt is then computed: every choice that is still wanted draws its first token.
    for (std::int32_t choice = 0; choice < std::ssize(request.choices); ++choice) {
      if (request.choices[static_cast<std::size_t>(choice)].is_finished) continue;
      jobs_.push_back({.use = use, .choice = choice, .starts_choice = true});
    }
  }
}

/// Leaves to the runner what it can draw by itself.
void EngineCore::plan_draws() {
  draws_.clear();
  if (runner_.num_token_masks() == 0) return;
  masks_.begin_step();
  wants_row_.assign(batch_.batch().logit_rows.size(), 0);
  for (RowJob& job : jobs_) {
    const Sequence& sequence = *job.use.chunk->sequence;
    const RequestState& request = *sequence.request;
    std::optional<PlannedDraw> plan;
    const std::int32_t num_drafts = job.use.is_prompt_row ? 0 : sequence.draft.size();
    if (!job.use.is_prompt_row && num_drafts == 0 && request.request.token_filter == nullptr) {
      plan = plan_draw(*request.rules, static_cast<std::uint32_t>(job.choice), sequence.tokens,
                       sequence.num_output());
    }
    if (plan && plan->banned_ids != nullptr) {
      const std::optional<std::int32_t> mask = masks_.find(*plan->banned_ids);
      if (mask) {
        plan->draw.mask = *mask;
      } else {
        plan.reset();
      }
    }
    if (!plan) {
      std::fill_n(wants_row_.begin() + job.use.row, 1 + num_drafts, std::uint8_t{1});
      continue;
    }
    plan->draw.row = job.use.row;
    job.draw = static_cast<std::int32_t>(draws_.size());
    draws_.push_back(plan->draw);
  }
}

void EngineCore::start_choices() {
  for (const RowJob& job : jobs_) {
    if (!job.starts_choice) continue;
    Sequence& sequence = *job.use.chunk->sequence;
    RequestState& request = *sequence.request;
    request.has_sampled = true;
    const TokenFilter* filter = request.request.token_filter.get();
    request.choices[static_cast<std::size_t>(job.choice)].sample =
        SampleState(*request.rules, static_cast<std::uint32_t>(job.choice), sequence.tokens,
                    filter ? filter->clone() : nullptr);
  }
}

void EngineCore::run_jobs() {
  bool is_any_left = false;
  for (RowJob& job : jobs_) {
    is_any_left |= job.draw < 0;
    if (job.draw >= 0) job.sample = sample_of(drawn_[static_cast<std::size_t>(job.draw)]);
  }
  if (!is_any_left) return;
  const auto run = [this](std::int64_t i, int thread) {
    run_job(jobs_[static_cast<std::size_t>(i)], scratch_[static_cast<std::size_t>(thread)]);
  };
  ThreadPool* pool = runner_.compute_pool();
  scratch_.resize(pool != nullptr ? static_cast<std::size_t>(pool->num_threads()) : 1);
  if (pool != nullptr && jobs_.size() > 1) {
    pool->parallel_for(std::ssize(jobs_), TaskRef(run));
  } else {
    for (std::int64_t i = 0; i < std::ssize(jobs_); ++i) run(i, 0);
  }
}

/// On any thread of the pool: touches nothing but its own choice and its own position.
void EngineCore::run_job(RowJob& job, VerifyScratch& scratch) {
  if (job.draw >= 0) return;
  const auto vocab_size = static_cast<std::size_t>(runner_.vocab_size());
  const std::span<const float> logits(
      step_logits_ + static_cast<std::size_t>(job.use.row) * vocab_size, vocab_size);
  if (job.use.is_prompt_row) {
    run_prompt_row(job, logits, scratch.sample);
    return;
  }
  const Sequence& sequence = *job.use.chunk->sequence;
  if (sequence.draft.size() > 0) {
    run_verification(job, scratch);
    return;
  }
  RequestState& request = *sequence.request;
  job.sample = sample_token(logits, *request.rules,
                            request.choices[static_cast<std::size_t>(job.choice)].sample,
                            sequence.tokens, sequence.num_output(), scratch.sample);
}

/// As run_job(): the sequence is its choice's own, and nobody else looks at its tokens.
void EngineCore::run_verification(RowJob& job, VerifyScratch& scratch) {
  Sequence& sequence = *job.use.chunk->sequence;
  RequestState& request = *sequence.request;
  DraftBlock& draft = sequence.draft;
  const auto vocab_size = static_cast<std::size_t>(runner_.vocab_size());
  const VerifyInput input{
      .logits = {step_logits_ + static_cast<std::size_t>(job.use.row) * vocab_size,
                 (draft.tokens.size() + 1) * vocab_size},
      .drafts = draft.tokens,
      .distributions = draft.distributions,
      .rules = request.rules.get(),
      .num_output = sequence.num_output()};
  verify(options_.speculation.method, input,
         request.choices[static_cast<std::size_t>(job.choice)].sample, sequence.tokens, scratch,
         draft.verified);
}

void EngineCore::run_prompt_row(RowJob& job, std::span<const float> logits,
                                SampleScratch& scratch) {
  const RowScan scan = row_kernels().scan(logits);
  if (scan.is_bad || scan.max == -std::numeric_limits<float>::infinity()) {
    job.sample.status = SampleStatus::kCorruptLogits;
    return;
  }
  const Sequence& sequence = *job.use.chunk->sequence;
  RequestState& request = *sequence.request;
  const auto next = static_cast<std::size_t>(job.use.position) + 1;
  const LogprobQuery query{.chosen = sequence.tokens[next],
                           .num_top = *request.request.sampling.prompt_logprobs,
                           .listed = request.request.sampling.logprob_token_ids};
  request.prompt_logprobs[next] = row_logprobs(logits, query, scratch.ranking);
}

/// Requests that only wanted their prompt computed end here.
void EngineCore::finish_prompts(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) {
    RequestState& request = *chunk.sequence->request;
    if (!chunk.is_sampled || request.request.sampling.max_tokens > 0) continue;
    const auto is_corrupt = [&](const RowJob& job) {
      return job.use.chunk == &chunk && job.sample.status != SampleStatus::kOk;
    };
    if (std::ranges::any_of(jobs_, is_corrupt)) continue;  // deliver_jobs() ends it
    for (std::int32_t choice = 0; choice < std::ssize(request.choices); ++choice) {
      if (request.choices[static_cast<std::size_t>(choice)].is_finished) continue;
      OutputUpdate update{.choice = choice};
      attach_prompt_logprobs(request, update);
      end_choice(request, choice, {.reason = FinishReason::kLength}, std::move(update));
    }
  }
}

void EngineCore::deliver_jobs() {
  for (std::size_t begin = 0; begin < jobs_.size();) {
    std::size_t end = begin + 1;
    while (end < jobs_.size() && jobs_[end].use.row == jobs_[begin].use.row) ++end;
    deliver_choices(begin, end);
    begin = end;
  }
}

/// jobs_[begin, end) drew from one row: one job while decoding, one per choice after the prompt.
void EngineCore::deliver_choices(std::size_t begin, std::size_t end) {
  Sequence& sequence = *jobs_[begin].use.chunk->sequence;
  RequestState& request = *sequence.request;
  if (sequence.phase == SequencePhase::kEnded) return;  // an earlier prompt row ended it
  if (jobs_[begin].use.is_prompt_row) {
    if (jobs_[begin].sample.status != SampleStatus::kOk) {
      end_request(request, sample_error(jobs_[begin]));
    }
    return;
  }
  if (sequence.draft.size() > 0) {
    deliver_verified(jobs_[begin]);
    return;
  }
  sequence.choice = jobs_[begin].choice;
  const std::int32_t num_output = sequence.num_output() + 1;
  // The lead comes last: the others share its blocks, which it may give back at once.
  for (std::size_t i = begin + 1; i < end; ++i) {
    const TokenId token = jobs_[i].sample.token;
    deliver_token(request, nullptr, jobs_[i], num_output);
    const ChoiceState& choice = request.choices[static_cast<std::size_t>(jobs_[i].choice)];
    if (!choice.is_finished) start_choice(request, jobs_[i].choice, token);
  }
  deliver_token(request, &sequence, jobs_[begin], num_output);
}

/// The accepted drafts and the token after them, one by one, as steps without drafts would.
void EngineCore::deliver_verified(RowJob& job) {
  Sequence& sequence = *job.use.chunk->sequence;
  RequestState& request = *sequence.request;
  Verified& verified = sequence.draft.verified;
  ++stats_.num_drafts;
  stats_.draft_tokens += sequence.draft.size();
  stats_.accepted_tokens += verified.num_accepted;
  const ChoiceState& choice = request.choices[static_cast<std::size_t>(job.choice)];
  std::int32_t num_delivered = 0;
  for (SampledToken& token : verified.tokens) {
    job.sample = {.token = token.token, .logprobs = std::move(token.logprobs)};
    deliver_token(request, &sequence, job, sequence.num_output() + 1);
    if (choice.is_finished) return;
    // The one after the accepted drafts is not in the cache yet.
    if (++num_delivered <= verified.num_accepted) scheduler_.commit_draft(sequence);
  }
  if (verified.status == SampleStatus::kOk) return;
  job.sample = {.status = verified.status};
  job.use.position += num_delivered;
  deliver_token(request, &sequence, job, sequence.num_output() + 1);
}

/// `sequence` is null for a choice that has none yet.
void EngineCore::deliver_token(RequestState& request, Sequence* sequence, RowJob& job,
                               std::int32_t num_output) {
  const std::int32_t choice = job.choice;
  OutputUpdate update{.choice = choice};
  if (job.sample.status != SampleStatus::kOk) {
    const Ending ending = sample_error(job);
    end_choice(request, choice, ending, std::move(update));
    return;
  }
  const TokenId token = job.sample.token;
  if (sequence != nullptr) sequence->tokens.push_back(token);
  request.choices[static_cast<std::size_t>(choice)].sample.accept(token);
  ++stats_.generation_tokens;
  ++request.stats.num_output_tokens;
  if (request.stats.first_token == Clock::time_point{}) request.stats.first_token = Clock::now();

  attach_prompt_logprobs(request, update);
  update.tokens.push_back({.token = token, .logprobs = std::move(job.sample.logprobs)});
  const SamplingParams& sampling = request.request.sampling;
  if (request.rules->ends_run(token)) {
    if (request.rules->is_request_stop_id(token)) update.stop_token = token;
    end_choice(request, choice, {.reason = FinishReason::kStop}, std::move(update));
  } else if (num_output >= sampling.max_tokens) {
    end_choice(request, choice, {.reason = FinishReason::kLength}, std::move(update));
  } else {
    request.request.on_update(std::move(update));
  }
}

void EngineCore::start_choice(RequestState& request, std::int32_t choice, TokenId first_token) {
  const Sequence& lead = request.lead();
  auto sequence = std::make_unique<Sequence>();
  sequence->request = &request;
  sequence->choice = choice;
  sequence->num_prompt = lead.num_prompt;
  sequence->num_ever_computed = lead.num_prompt;
  sequence->tokens.reserve(lead.tokens.size() + 1);
  sequence->tokens.assign(lead.tokens.begin(), lead.tokens.begin() + lead.num_prompt);
  sequence->tokens.push_back(first_token);
  std::optional<Scheduler::CopiedBlock> copied;
  if (!scheduler_.start_choice(lead, *sequence, copied)) {
    scheduler_.add_resumed(*sequence);
  }
  Sequence& started = *sequence;
  request.sequences.push_back(std::move(sequence));
  if (!copied) return;
  try {
    runner_.copy_block(copied->from, copied->to);
  } catch (const std::exception& error) {
    spdlog::error("copying a KV block failed: {}", error.what());
    end_choice(request, started.choice, {.reason = FinishReason::kError, .message = error.what()},
               {.choice = started.choice});
  }
}

EngineCore::Ending EngineCore::sample_error(const RowJob& job) {
  Sequence& sequence = *job.use.chunk->sequence;
  Ending ending{.reason = FinishReason::kError};
  if (job.sample.status == SampleStatus::kNothingAllowed) {
    ending.code = ErrorCode::kInvalidArgument;
    ending.message = fmt::format(
        "no token is allowed after {} generated ones: the request's constraints contradict each "
        "other",
        sequence.num_output());
    return ending;
  }
  // What broke these logits may sit in the cache: nobody else is to find it there.
  if (sequence.phase == SequencePhase::kRunning) scheduler_.forget(sequence);
  ++stats_.num_corrupted_requests;
  ending.message =
      fmt::format("the model's logits at position {} are not numbers", job.use.position);
  return ending;
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
