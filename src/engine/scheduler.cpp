#include "engine/scheduler.h"

#include <algorithm>

#include "base/assert.h"

namespace winnow {
namespace {

constexpr std::int32_t kWatermarkShare = 100;  // one block in so many stays free at admission

std::int32_t blocks_for(std::int32_t num_tokens, std::int32_t block_tokens) {
  return (num_tokens + block_tokens - 1) / block_tokens;
}

}  // namespace

Scheduler::Scheduler(const EngineOptions& options, ModelRunner& runner,
                     std::int32_t max_prompt_rows, EngineStats& stats)
    : options_(options),
      runner_(runner),
      stats_(stats),
      max_prompt_rows_(max_prompt_rows),
      watermark_(runner.num_blocks() / kWatermarkShare),
      pool_(runner.num_blocks(), runner.block_tokens()),
      hasher_(options.prefix_cache_secret),
      pacer_(options.target_itl_ms * 1e-3, runner.block_tokens()),
      order_{.use_priority = options.policy == SchedulingPolicy::kPriority},
      waiting_({.order = order_,
                .is_fair = options.fair_admission,
                .quantum = options.max_num_batched_tokens,
                .cost = [this](Sequence& sequence) { return admission_cost(sequence); }}),
      adapters_(options.max_adapters, order_) {}

void Scheduler::add_resumed(Sequence& sequence) {
  sequence.phase = SequencePhase::kWaiting;
  waiting_.push_resumed(sequence);
}

void Scheduler::remove(Sequence& sequence) {
  if (sequence.phase == SequencePhase::kRunning) {
    std::erase(running_, &sequence);
    adapters_.stop(sequence);
    sequence.table.release(pool_);
  } else if (sequence.phase == SequencePhase::kWaiting && !adapters_.remove(sequence)) {
    waiting_.remove(sequence);
  }
  sequence.phase = SequencePhase::kEnded;
}

std::span<const Chunk> Scheduler::plan(DraftPlanner& planner) {
  chunks_.clear();
  token_budget_ = options_.max_num_batched_tokens;
  prompt_row_budget_ = max_prompt_rows_;
  has_preempted_ = false;
  prefill_budget_ = token_budget_;
  adapters_.begin_step();
  plan_running(/*is_decode_pass=*/true);
  if (planner.max_drafts() > 0) plan_drafts(planner);
  if (!chunks_.empty()) prefill_budget_ = std::min(prefill_budget_, pacer_.limit());
  plan_running(/*is_decode_pass=*/false);
  // Who was just preempted for lack of blocks would only come back to be preempted again.
  if (!has_preempted_ || running_.empty()) admit_waiting();
  std::erase_if(chunks_, [](const Chunk& chunk) { return chunk.num_tokens == 0; });
  WINNOW_ASSERT(!chunks_.empty() || (running_.empty() && num_waiting() == 0),
                "a sequence that fits the pool can always proceed", running_.size(), num_waiting(),
                pool_.num_free());
  return chunks_;
}

void Scheduler::plan_running(bool is_decode_pass) {
  for (std::size_t i = 0; i < running_.size(); ++i) {  // preemption shortens it from the back
    Sequence& sequence = *running_[i];
    if ((sequence.num_missing() == 1) == is_decode_pass) plan_one(sequence);
  }
}

bool Scheduler::plan_one(Sequence& sequence) {
  std::int32_t num_tokens = chunk_size(sequence);
  if (num_tokens == 0) return false;
  for (;;) {
    // A prefill takes what blocks there are before it asks others for theirs.
    const std::int64_t covered =
        (std::int64_t{sequence.table.num_blocks()} + pool_.num_free()) * pool_.block_tokens();
    num_tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(num_tokens, covered - sequence.num_computed));
    if (num_tokens > 0) break;
    Sequence& victim = *running_.back();
    preempt(victim);
    if (&victim == &sequence) return false;
    num_tokens = chunk_size(sequence);
  }
  add_chunk(sequence, num_tokens);
  return true;
}

/// From what the decodes left: drafts never cost anybody a block or a seat in the step.
void Scheduler::plan_drafts(DraftPlanner& planner) {
  candidates_.clear();
  drafting_.clear();
  std::int32_t num_decodes = 0;
  for (Chunk& chunk : chunks_) {
    if (chunk.num_tokens == 0) continue;
    ++num_decodes;
    const std::int32_t limit = draft_limit(*chunk.sequence);
    if (limit <= 0) continue;
    candidates_.push_back({.sequence = chunk.sequence, .limit = limit});
    drafting_.push_back(&chunk);
  }
  const std::int32_t num_others = expected_prompt_rows();
  const auto lengths = planner.choose(candidates_, num_decodes, num_others);
  const bool has_prompts = num_others > 0 || !waiting_.empty();
  std::int32_t budget = has_prompts ? token_budget_ / 2 : token_budget_;
  for (std::size_t i = 0; i < drafting_.size(); ++i) give_room(*drafting_[i], lengths[i], budget);
}

/// Tokens that prompts are going to want of this step, the next one that waits among them.
std::int32_t Scheduler::expected_prompt_rows() {
  std::int64_t num_missing = 0;
  if (!waiting_.empty() && num_running() < options_.max_num_seqs) {
    num_missing = waiting_.peek().num_missing();
  }
  for (const Sequence* sequence : running_) {
    if (sequence->num_missing() > 1) num_missing += sequence->num_missing();
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(num_missing, token_budget_));
}

void Scheduler::give_room(Chunk& chunk, std::int32_t num_drafts, std::int32_t& budget) {
  Sequence& sequence = *chunk.sequence;
  num_drafts = std::min(num_drafts, budget);
  // New blocks only while every running sequence could still have one.
  const std::int32_t covered = sequence.table.num_blocks() * pool_.block_tokens() - chunk.end();
  const std::int32_t spare = std::max(pool_.num_free() - num_running() - watermark_, 0);
  num_drafts = static_cast<std::int32_t>(
      std::min<std::int64_t>(num_drafts, covered + std::int64_t{spare} * pool_.block_tokens()));
  if (num_drafts <= 0) return;
  const bool has_grown = sequence.table.grow(pool_, chunk.end() + num_drafts);
  WINNOW_ASSERT(has_grown, "blocks were counted before", pool_.num_free(), num_drafts);
  chunk.num_drafts = num_drafts;
  budget -= num_drafts;
  token_budget_ -= num_drafts;
}

/// Drafts that could become output, the token after them being the run's last at best. That keeps
/// them inside the context and inside the slots that admission counted.
std::int32_t Scheduler::draft_limit(const Sequence& sequence) const {
  const RequestState& request = *sequence.request;
  if (!request.has_sampled || sequence.num_missing() != 1) return 0;
  if (!sequence.drafting.is_followed.value_or(false)) return 0;
  const std::int32_t left = request.request.sampling.max_tokens - sequence.num_output();
  const std::int32_t own_limit = options_.speculation.max_model_len;
  const std::int32_t longest =
      own_limit > 0 ? std::min(own_limit, options_.max_model_len) : options_.max_model_len;
  const std::int32_t context_left = longest - sequence.num_tokens();
  return std::min(left, context_left) - 1;
}

void Scheduler::admit_waiting() {
  while (token_budget_ > 0) {
    Sequence* const next = next_waiting();
    if (next == nullptr || !admit(*next)) return;
  }
}

/// Parks what the queue has ahead of it; null: nothing may start. Of one priority, those that ran
/// before go first, then those that were parked.
Sequence* Scheduler::next_waiting() {
  while (!waiting_.empty() && !adapters_.may_start(waiting_.peek())) {
    adapters_.park(waiting_.pop());
  }
  Sequence* const parked = adapters_.first_ready();
  if (waiting_.empty()) return parked;
  Sequence& queued = waiting_.peek();
  if (parked == nullptr) return &queued;
  if (order_.priority_of(*parked) != order_.priority_of(queued)) {
    return order_.priority_of(*parked) < order_.priority_of(queued) ? parked : &queued;
  }
  if (!queued.request->is_admitted) return parked;
  const bool is_parked_first = parked->request->is_admitted && arrived_before(*parked, queued);
  return is_parked_first ? parked : &queued;
}

bool Scheduler::admit(Sequence& sequence) {
  std::int32_t num_tokens = 0;
  if (!has_seat_for(sequence) || !find_blocks_for(sequence, num_tokens)) return false;
  if (!adapters_.remove(sequence)) {
    const Sequence& popped = waiting_.pop();
    WINNOW_ASSERT(&popped == &sequence, "the queue's order is stable", popped.request->id);
  }
  sequence.table.adopt(pool_, match_);
  sequence.num_computed = static_cast<std::int32_t>(match_.blocks.size()) * pool_.block_tokens();
  count_admission(sequence, sequence.num_computed);
  insert_running(sequence);
  add_chunk(sequence, num_tokens);
  return true;
}

bool Scheduler::has_seat_for(const Sequence& sequence) {
  return num_running() < options_.max_num_seqs || preempt_for(sequence);
}

/// Leaves the prefix to adopt in match_ and the chunk to compute after it in `num_tokens`.
bool Scheduler::find_blocks_for(Sequence& sequence, std::int32_t& num_tokens) {
  for (;;) {
    match_prefix(sequence, match_);
    const auto num_cached = static_cast<std::int32_t>(match_.blocks.size()) * pool_.block_tokens();
    sequence.num_computed = num_cached;
    num_tokens = chunk_size(sequence);
    sequence.num_computed = 0;
    if (num_tokens == 0) return false;
    const std::int32_t needed = blocks_for(num_cached + num_tokens, pool_.block_tokens()) -
                                static_cast<std::int32_t>(match_.blocks.size());
    const std::int32_t spare = running_.empty() ? 0 : watermark_;
    const std::int32_t taken = match_.num_free + needed + spare;
    if (pool_.num_free() >= taken) return true;
    if (!could_fit_by_preemption(sequence, taken) || !preempt_for(sequence)) return false;
  }
}

std::int32_t Scheduler::chunk_size(const Sequence& sequence) const {
  const std::int32_t missing = sequence.num_missing();
  std::int32_t size = std::min(missing, token_budget_);
  if (missing > 1) size = std::min(size, prefill_budget_);
  if (options_.long_prefill_token_threshold > 0) {
    size = std::min(size, options_.long_prefill_token_threshold);
  }
  const std::int32_t last_prompt = sequence.num_prompt - 1;
  if (sequence.request->wants_prompt_logits() && sequence.num_computed < last_prompt) {
    size = std::min(size, prompt_row_budget_);
  }
  if (size == missing) return size;
  // Cut at a block boundary where there is one.
  const std::int32_t block_tokens = pool_.block_tokens();
  const std::int32_t end = (sequence.num_computed + size) / block_tokens * block_tokens;
  return end > sequence.num_computed ? end - sequence.num_computed : size;
}

void Scheduler::add_chunk(Sequence& sequence, std::int32_t num_tokens) {
  const bool has_grown = sequence.table.grow(pool_, sequence.num_computed + num_tokens);
  WINNOW_ASSERT(has_grown, "blocks were counted before", pool_.num_free(), num_tokens);
  Chunk chunk{.sequence = &sequence, .num_tokens = num_tokens};
  chunk.is_sampled = chunk.end() == sequence.num_tokens();
  if (sequence.request->wants_prompt_logits()) {
    const std::int32_t end = std::min(chunk.end(), sequence.num_prompt - 1);
    chunk.num_prompt_rows = std::max(end - sequence.num_computed, 0);
  }
  token_budget_ -= num_tokens;
  if (num_tokens > 1) prefill_budget_ -= num_tokens;
  prompt_row_budget_ -= chunk.num_prompt_rows;
  chunks_.push_back(chunk);
}

void Scheduler::count_admission(Sequence& sequence, std::int32_t num_cached) {
  RequestState& request = *sequence.request;
  if (request.is_admitted) return;
  request.is_admitted = true;
  request.stats.first_scheduled = Clock::now();
  request.stats.num_cached_tokens = num_cached;
  stats_.prompt_tokens += sequence.num_prompt;
  stats_.cached_tokens += num_cached;
  if (options_.enable_prefix_caching && !request.wants_prompt_logits()) {
    stats_.prefix_queries += sequence.num_prompt;
    stats_.prefix_hits += num_cached;
  }
}

void Scheduler::match_prefix(Sequence& sequence, PrefixMatch& match) {
  match.blocks.clear();
  match.num_free = 0;
  if (!options_.enable_prefix_caching) return;
  const GenerationRequest& request = sequence.request->request;
  sequence.table.set_scope(
      hasher_, {.cache_identity = runner_.cache_identity(),
                .adapter = request.adapter != nullptr ? request.adapter->fingerprint() : 0,
                .salt = request.cache_salt});
  if (sequence.request->wants_prompt_logits()) return;
  sequence.table.match_prefix(pool_, hasher_, sequence.tokens, match);
}

std::int32_t Scheduler::admission_cost(Sequence& sequence) {
  match_prefix(sequence, cost_match_);
  return sequence.num_tokens() -
         static_cast<std::int32_t>(cost_match_.blocks.size()) * pool_.block_tokens();
}

void Scheduler::commit(const Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  const std::int32_t end = chunk.end();
  const std::int32_t repeated =
      std::clamp(sequence.num_ever_computed - sequence.num_computed, 0, chunk.num_tokens);
  stats_.recomputed_tokens += repeated;
  sequence.request->stats.num_recomputed_tokens += repeated;
  sequence.num_computed = end;
  sequence.num_ever_computed = std::max(sequence.num_ever_computed, end);
  if (options_.enable_prefix_caching) {
    sequence.table.publish(pool_, hasher_, sequence.tokens, sequence.num_computed);
  }
}

void Scheduler::commit_draft(Sequence& sequence) {
  ++sequence.num_computed;
  WINNOW_ASSERT(sequence.num_computed <= sequence.num_tokens(), "a draft is one of the tokens",
                sequence.num_computed, sequence.num_tokens());
  sequence.num_ever_computed = std::max(sequence.num_ever_computed, sequence.num_computed);
  if (options_.enable_prefix_caching) {
    sequence.table.publish(pool_, hasher_, sequence.tokens, sequence.num_computed);
  }
}

void Scheduler::observe_step(double seconds) {
  std::int32_t num_decode_tokens = 0;
  std::int32_t num_prompt_tokens = 0;
  for (const Chunk& chunk : chunks_) {
    (chunk.num_tokens == 1 ? num_decode_tokens : num_prompt_tokens) += chunk.num_tokens;
    num_decode_tokens += chunk.sequence->draft.size();
  }
  pacer_.observe(num_decode_tokens, num_prompt_tokens, seconds);
}

bool Scheduler::start_choice(const Sequence& lead, Sequence& choice,
                             std::optional<CopiedBlock>& copied) {
  copied.reset();
  if (num_running() >= options_.max_num_seqs) return false;
  const std::int32_t num_full = lead.num_prompt / pool_.block_tokens();
  const bool has_partial = lead.num_prompt % pool_.block_tokens() != 0;
  if (has_partial && pool_.num_free() <= watermark_) return false;
  choice.table.share(pool_, lead.table, num_full);
  if (has_partial) {
    const bool has_grown = choice.table.grow(pool_, lead.num_prompt);
    WINNOW_ASSERT(has_grown, "one block was free", pool_.num_free());
    const auto at = static_cast<std::size_t>(num_full);
    copied = {.from = lead.table.blocks()[at], .to = choice.table.blocks()[at]};
  }
  choice.num_computed = lead.num_prompt;
  insert_running(choice);
  return true;
}

bool Scheduler::reset_prefix_cache(bool force) {
  if (!force && pool_.num_free() < pool_.num_blocks()) return false;
  for (Sequence* sequence : running_) sequence->table.stop_publishing();
  pool_.forget_all();
  return true;
}

void Scheduler::preempt(Sequence& victim) {
  for (Chunk& chunk : chunks_) {
    if (chunk.sequence != &victim) continue;
    token_budget_ += chunk.num_tokens + chunk.num_drafts;
    if (chunk.num_tokens > 1) prefill_budget_ += chunk.num_tokens;
    prompt_row_budget_ += chunk.num_prompt_rows;
    chunk.num_tokens = 0;
    chunk.num_drafts = 0;
  }
  std::erase(running_, &victim);
  adapters_.stop(victim);
  victim.table.release(pool_);
  victim.num_computed = 0;
  add_resumed(victim);
  has_preempted_ = true;
  ++stats_.num_preemptions;
  ++victim.request->stats.num_preemptions;
}

bool Scheduler::preempt_for(const Sequence& sequence) {
  if (running_.empty()) return false;
  Sequence& last = *running_.back();
  if (order_.priority_of(last) <= order_.priority_of(sequence)) return false;
  preempt(last);
  return true;
}

/// An upper bound: blocks shared by several are counted for each.
bool Scheduler::could_fit_by_preemption(const Sequence& sequence, std::int32_t num_needed) const {
  std::int64_t num_available = pool_.num_free();
  for (const Sequence* other : running_) {
    const bool is_later = order_.priority_of(*other) > order_.priority_of(sequence);
    if (is_later) num_available += other->table.num_blocks();
  }
  return num_available >= num_needed;
}

void Scheduler::insert_running(Sequence& sequence) {
  sequence.phase = SequencePhase::kRunning;
  const auto at = std::ranges::find_if(
      running_, [&](const Sequence* other) { return order_.is_before(sequence, *other); });
  running_.insert(at, &sequence);
  adapters_.start(sequence);
}

void Scheduler::check_integrity() const {
  std::vector<std::int32_t> expected(static_cast<std::size_t>(pool_.num_blocks()), 0);
  for (const Sequence* sequence : running_) {
    for (const BlockId block : sequence->table.blocks()) {
      ++expected[static_cast<std::size_t>(block.value)];
    }
  }
  pool_.check_integrity(expected);
}

}  // namespace winnow
