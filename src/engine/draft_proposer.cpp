#include "engine/draft_proposer.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/log.h"
#include "engine/sample/row_kernels.h"

namespace winnow {

void DraftProposer::propose(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) chunk.sequence->draft.clear();
  if (planner_.max_drafts() == 0) return;
  try {
    draft(chunks);
  } catch (const std::exception& error) {
    spdlog::error("drafting failed, the engine goes on without: {}", error.what());
    planner_.give_up();
    for (const Chunk& chunk : chunks) chunk.sequence->draft.clear();
  }
}

void DraftProposer::draft(std::span<const Chunk> chunks) {
  drafting_.clear();
  requests_.clear();
  previous_.clear();
  for (const Chunk& chunk : chunks) {
    if (chunk.num_drafts == 0) continue;
    const Sequence& sequence = *chunk.sequence;
    drafting_.push_back(&chunk);
    requests_.push_back({.anchor = sequence.tokens.back(),
                         .position = sequence.num_tokens() - 1,
                         .block_table = sequence.table.blocks()});
    previous_.push_back(sequence.tokens.back());
  }
  if (drafting_.empty()) return;
  if (can_draw_on_runner()) return draw_on_runner();
  is_open_.assign(drafting_.size(), 1);
  runner_.draft(requests_, options_.num_drafts);
  const auto vocab_size = static_cast<std::size_t>(runner_.vocab_size());
  const auto block = static_cast<std::size_t>(options_.num_drafts);
  const bool has_confidence = planner_.uses_confidence() && runner_.has_draft_confidence();
  confidence_.resize(has_confidence ? drafting_.size() : 0);
  std::int32_t most = 0;
  for (const Chunk* chunk : drafting_) most = std::max(most, chunk->num_drafts);
  for (std::int32_t slot = 0; slot < most; ++slot) {
    if (std::ranges::none_of(is_open_, [](std::uint8_t is_open) { return is_open != 0; })) break;
    runner_.draft_step(slot, previous_, confidence_);
    const float* const logits = runner_.draft_logits();
    for (std::size_t i = 0; i < drafting_.size(); ++i) {
      if (is_open_[i] == 0 || slot >= drafting_[i]->num_drafts) continue;
      Sequence& sequence = *drafting_[i]->sequence;
      if (has_confidence && !planner_.keeps_slot(sequence, confidence_[i])) {
        is_open_[i] = 0;
        continue;
      }
      const std::size_t row = i * block + static_cast<std::size_t>(slot);
      is_open_[i] = propose_slot(sequence, {logits + row * vocab_size, vocab_size}) ? 1 : 0;
      if (is_open_[i] != 0) previous_[i] = sequence.draft.tokens.back();
    }
  }
}

/// q over the vocabulary or over the draft_top_k most likely tokens.
bool DraftProposer::fill_weights(std::span<const float> logits, const SampleRules& rules,
                                 DraftWeights& out) {
  const std::int32_t top_k = options_.draft_top_k;
  if (top_k == 0 || top_k >= std::ssize(logits)) {
    return fill_draft_weights(logits, {}, rules, out);
  }
  if (row_kernels().scan(logits).is_bad) return false;
  select_top_k(logits, top_k, top_);
  top_ids_.clear();
  for (const Candidate& candidate : top_) top_ids_.push_back(candidate.token);
  std::ranges::sort(top_ids_);
  top_logits_.clear();
  for (const TokenId token : top_ids_) {
    top_logits_.push_back(logits[static_cast<std::size_t>(token)]);
  }
  return fill_draft_weights(top_logits_, top_ids_, rules, out);
}

/// Whether tokens are all that is wanted: no test asks for the distributions that they came from.
bool DraftProposer::can_draw_on_runner() const {
  return runner_.can_draw_drafts() && std::ranges::all_of(drafting_, [this](const Chunk* chunk) {
           return options_.is_greedy_draft ||
                  verifies_by_equality(options_.method, *chunk->sequence->request->rules);
         });
}

/// The tokens that propose_slot() would take from each slot's logits.
void DraftProposer::draw_on_runner() {
  const std::size_t count = drafting_.size();
  draws_.assign(count * static_cast<std::size_t>(options_.num_drafts), {});
  drawn_.assign(draws_.size(), {});
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    const Sequence& sequence = *drafting_[i % count]->sequence;
    const SampleRules& rules = *sequence.request->rules;
    ops::Draw& draw = draws_[i];
    draw.is_greedy = options_.is_greedy_draft || rules.is_greedy() ? 1 : 0;
    if (draw.is_greedy != 0) continue;
    draw.seed = rules.seed;
    draw.choice = static_cast<std::uint32_t>(sequence.choice);
    draw.position = static_cast<std::uint32_t>(requests_[i % count].position) +
                    static_cast<std::uint32_t>(i / count);
    draw.inverse_temperature = 1.0F / rules.params->temperature;
    draw.top_k = options_.draft_top_k;
  }
  const bool has_confidence = planner_.uses_confidence() && runner_.has_draft_confidence();
  confidence_.resize(has_confidence ? draws_.size() : 0);
  runner_.draft_and_draw(requests_, options_.num_drafts,
                         {.draws = draws_, .drawn = drawn_, .confidence = confidence_});
  is_open_.assign(count, 1);
  for (std::size_t at = 0; at < drawn_.size(); ++at) {
    const std::size_t i = at % count;
    if (is_open_[i] == 0 || std::cmp_greater_equal(at / count, drafting_[i]->num_drafts)) continue;
    Sequence& sequence = *drafting_[i]->sequence;
    const bool is_kept = !has_confidence || planner_.keeps_slot(sequence, confidence_[at]);
    is_open_[i] = is_kept && drawn_[at].status == ops::DrawStatus::kOk ? 1 : 0;
    if (is_open_[i] != 0) sequence.draft.tokens.push_back(drawn_[at].token);
  }
}

/// False where the logits are of no use: the block ends before this slot.
bool DraftProposer::propose_slot(Sequence& sequence, std::span<const float> logits) {
  DraftBlock& draft = sequence.draft;
  const SampleRules& rules = *sequence.request->rules;
  if (options_.is_greedy_draft || rules.is_greedy()) {
    const RowScan scan = row_kernels().scan(logits);
    if (scan.is_bad || scan.max == -std::numeric_limits<float>::infinity()) return false;
    draft.tokens.push_back(scan.argmax);
    return true;
  }
  const std::size_t slot = draft.tokens.size();
  if (draft.weights.size() <= slot) draft.weights.resize(slot + 1);
  DraftWeights& weights = draft.weights[slot];
  if (!fill_weights(logits, rules, weights)) return false;
  const DrawKey anchor{.seed = rules.seed,
                       .choice = static_cast<std::uint32_t>(sequence.choice),
                       .position = static_cast<std::uint32_t>(sequence.num_tokens() - 1),
                       .slot = static_cast<std::uint32_t>(slot)};
  draft.distributions.push_back(weights.view());
  draft.tokens.push_back(propose_token(draft.distributions.back(), anchor, options_.method));
  return true;
}

void DraftProposer::commit_context(const Batch& batch, std::span<const Chunk> chunks) {
  if (planner_.max_drafts() == 0) return;
  slices_.clear();
  const auto num_sequences = static_cast<std::int32_t>(chunks.size());
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!planner_.follows(*chunks[i].sequence, num_sequences)) continue;
    const BatchSequence& sequence = batch.sequences[i];
    const std::int32_t num_accepted = chunks[i].sequence->draft.num_accepted();
    slices_.push_back({.first_row = sequence.first_token,
                       .num_tokens = chunks[i].num_tokens + num_accepted,
                       .first_position = sequence.first_position,
                       .block_table = sequence.block_table});
  }
  if (slices_.empty()) return;
  try {
    runner_.commit_context(slices_);
  } catch (const std::exception& error) {
    spdlog::error("the drafter's context failed, the engine goes on without: {}", error.what());
    planner_.give_up();
  }
}

}  // namespace winnow
