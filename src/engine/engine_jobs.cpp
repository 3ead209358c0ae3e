// What is drawn from a step's rows of logits: which jobs there are, who does them, and doing them.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/thread_pool.h"
#include "engine/engine_core.h"
#include "engine/sample/logprobs.h"
#include "engine/sample/row_kernels.h"

namespace winnow {

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
    const std::size_t first = draws_.size();
    if (plan_draws_of(job)) {
      job.draw = static_cast<std::int32_t>(first);
      continue;
    }
    draws_.resize(first);
    const std::int32_t num_drafts =
        job.is_verification() ? job.use.chunk->sequence->draft.size() : 0;
    std::fill_n(wants_row_.begin() + job.use.row, 1 + num_drafts, std::uint8_t{1});
  }
}

/// Adds a draw for the job's row, and for each row that follows one of its drafts as if they all
/// were output. False: the rows themselves are needed.
bool EngineCore::plan_draws_of(const RowJob& job) {
  Sequence& sequence = *job.use.chunk->sequence;
  const RequestState& request = *sequence.request;
  if (job.use.is_prompt_row || request.request.token_filter != nullptr) return false;
  const auto choice = static_cast<std::uint32_t>(job.choice);
  if (!job.is_verification()) {
    return plan_row_draw(*request.rules, choice, sequence, job.use.row);
  }
  if (synthetic_ || !verifies_by_equality(options_.speculation.method, *request.rules)) {
    return false;
  }
  const std::size_t num_tokens = sequence.tokens.size();
  std::int32_t row = job.use.row;
  bool is_planned = plan_row_draw(*request.rules, choice, sequence, row);
  for (const TokenId token : sequence.draft.tokens) {
    if (!is_planned) break;
    sequence.tokens.push_back(token);
    is_planned = plan_row_draw(*request.rules, choice, sequence, ++row);
  }
  sequence.tokens.resize(num_tokens);
  return is_planned;
}

bool EngineCore::plan_row_draw(const SampleRules& rules, std::uint32_t choice,
                               const Sequence& sequence, std::int32_t row) {
  std::optional<PlannedDraw> plan =
      plan_draw(rules, choice, sequence.tokens, sequence.num_output());
  if (!plan) return false;
  if (plan->banned_ids != nullptr) {
    const std::optional<std::int32_t> mask = masks_.find(*plan->banned_ids);
    if (!mask) return false;
    plan->draw.mask = *mask;
  }
  plan->draw.row = row;
  draws_.push_back(plan->draw);
  return true;
}

/// Before the step runs, as the masks of first tokens are filled meanwhile.
void EngineCore::make_first_states() {
  for (const RowJob& job : jobs_) {
    if (!job.starts_choice) continue;
    const Sequence& sequence = *job.use.chunk->sequence;
    RequestState& request = *sequence.request;
    const TokenFilter* filter = request.request.token_filter.get();
    request.choices[static_cast<std::size_t>(job.choice)].sample =
        SampleState(*request.rules, static_cast<std::uint32_t>(job.choice), sequence.tokens,
                    filter ? filter->clone() : nullptr);
  }
}

/// Hands the filters of what this step draws to the worker, until mask_worker_.end().
void EngineCore::begin_masks() {
  mask_tasks_.clear();
  for (const RowJob& job : jobs_) {
    if (job.use.is_prompt_row) continue;
    const Sequence& sequence = *job.use.chunk->sequence;
    RequestState& request = *sequence.request;
    SampleState& state = request.choices[static_cast<std::size_t>(job.choice)].sample;
    if (!state.filter) continue;
    mask_tasks_.push_back(
        {.state = &state, .drafts = sequence.draft.tokens, .rules = request.rules.get()});
  }
  mask_worker_.begin(mask_tasks_);
}

void EngineCore::note_first_draws() {
  for (const RowJob& job : jobs_) {
    if (job.starts_choice) job.use.chunk->sequence->request->has_sampled = true;
  }
}

void EngineCore::count_late_masks() {
  for (const MaskWorker::Task& task : mask_tasks_) {
    stats_.num_late_masks += std::exchange(task.state->num_late_masks, 0);
  }
}

void EngineCore::run_jobs() {
  ThreadPool* pool = runner_.compute_pool();
  scratch_.resize(pool != nullptr ? static_cast<std::size_t>(pool->num_threads()) : 1);
  bool is_any_left = false;
  for (RowJob& job : jobs_) {
    if (job.draw < 0) {
      is_any_left = true;
    } else if (job.is_verification()) {
      run_verification(job, scratch_.front());
    } else {
      job.sample = sample_of(drawn_[static_cast<std::size_t>(job.draw)]);
    }
  }
  if (!is_any_left) return;
  const auto run = [this](std::int64_t i, int thread) {
    run_job(jobs_[static_cast<std::size_t>(i)], scratch_[static_cast<std::size_t>(thread)]);
  };
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
  if (job.is_verification()) {
    run_verification(job, scratch);
    return;
  }
  const Sequence& sequence = *job.use.chunk->sequence;
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
  VerifyInput input{.logits = {},
                    .drafts = draft.tokens,
                    .distributions = draft.distributions,
                    .rules = request.rules.get(),
                    .num_output = sequence.num_output()};
  const std::size_t num_rows = draft.tokens.size() + 1;
  if (job.draw >= 0) {
    input.drawn = std::span(drawn_).subspan(static_cast<std::size_t>(job.draw), num_rows);
  } else {
    const auto vocab_size = static_cast<std::size_t>(runner_.vocab_size());
    input.logits = {step_logits_ + static_cast<std::size_t>(job.use.row) * vocab_size,
                    num_rows * vocab_size};
  }
  SampleState& state = request.choices[static_cast<std::size_t>(job.choice)].sample;
  if (synthetic_) {
    verify_synthetic(*synthetic_, input, state, sequence.tokens, scratch, draft.verified);
  } else {
    verify(options_.speculation.method, input, state, sequence.tokens, scratch, draft.verified);
  }
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

}  // namespace winnow
