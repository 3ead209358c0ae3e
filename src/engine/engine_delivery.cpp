// What a step's jobs found, on its way to those who asked: tokens, new choices, ends and errors.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "engine/engine_core.h"

namespace winnow {

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
  stats_.draft_tokens += verified.num_proposed;
  stats_.accepted_tokens += verified.num_accepted;
  for (std::int32_t i = 0; i < verified.num_accepted; ++i) {
    ++stats_.accepted_by_position[static_cast<std::size_t>(i)];
  }
  request.stats.drafted_steps.push_back(
      {.num_drafts = static_cast<std::uint8_t>(verified.num_proposed),
       .num_accepted = static_cast<std::uint8_t>(verified.num_accepted)});
  const ChoiceState& choice = request.choices[static_cast<std::size_t>(job.choice)];
  const std::int32_t first_row = job.use.row;
  std::int32_t num_delivered = 0;
  for (SampledToken& token : verified.tokens) {
    job.sample = {.token = token.token, .logprobs = std::move(token.logprobs)};
    job.use.row = first_row + num_delivered;
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
  update.tokens.push_back({.token = token,
                           .logprobs = std::move(job.sample.logprobs),
                           .kept_blocks = kept_blocks_of(job.use.row)});
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

/// Empty where nobody asked.
std::vector<std::int32_t> EngineCore::kept_blocks_of(std::int32_t row) const {
  const std::vector<std::int32_t>& rows = batch_.batch().selection_rows;
  if (rows.empty()) return {};
  const std::span<const std::int32_t> selections = runner_.selections();
  const auto found = std::ranges::lower_bound(rows, row);
  if (selections.empty() || found == rows.end() || *found != row) return {};
  const std::size_t size = selections.size() / rows.size();
  const auto kept = selections.subspan(static_cast<std::size_t>(found - rows.begin()) * size, size);
  return {kept.begin(), kept.end()};
}

void EngineCore::start_choice(RequestState& request, std::int32_t choice, TokenId first_token) {
  const Sequence& lead = request.lead();
  auto sequence = std::make_unique<Sequence>();
  sequence->request = &request;
  sequence->choice = choice;
  sequence->num_prompt = lead.num_prompt;
  sequence->num_ever_computed = lead.num_prompt;
  sequence->drafting.is_followed = lead.drafting.is_followed;
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

}  // namespace winnow
