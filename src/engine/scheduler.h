// Decides what each step computes: which sequences, how many tokens of each, and who has to give
// blocks back. Source: spec/serving.md 3.1 to 3.5.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "engine/adapter_turns.h"
#include "engine/draft_planner.h"
#include "engine/engine.h"
#include "engine/prefill_pacer.h"
#include "engine/sequence.h"
#include "engine/waiting_queue.h"

namespace winnow {

/// One sequence's part of a step: its tokens [num_computed, num_computed + num_tokens), and drafts
/// after them.
struct Chunk {
  Sequence* sequence = nullptr;
  std::int32_t num_tokens = 0;
  std::int32_t num_prompt_rows = 0;  // rows of logits for prompt log-probabilities
  std::int32_t num_drafts = 0;       // room for so many: blocks, tokens and rows of this step
  bool is_sampled = false;           // ends at the last known token: its logits give the next

  std::int32_t end() const { return sequence->num_computed + num_tokens; }
};

/// Owned by the engine thread. Keeps the lists of waiting and running sequences and all of their
/// blocks; the sequences belong to their requests.
///
/// Nobody waits for ever: running sequences are ordered by (priority, arrival), and who lacks a
/// block takes it from the last one, so the first always proceeds, and it fits the pool by itself.
class Scheduler {
 public:
  /// `max_prompt_rows`: rows of logits a step may spend on prompt log-probabilities.
  Scheduler(const EngineOptions& options, ModelRunner& runner, std::int32_t max_prompt_rows,
            EngineStats& stats);

  void add(Sequence& sequence) { waiting_.push(sequence); }
  /// Waits with its tokens known but no blocks, ahead of new ones: it was admitted before.
  void add_resumed(Sequence& sequence);
  /// Takes the sequence out of its list and its blocks back.
  void remove(Sequence& sequence);

  /// The next step's chunks, with blocks allocated for all of their tokens. Decodes first, then
  /// prefills that have begun, then waiting sequences. Decodes get room for as many drafts more
  /// as `planner` asks for. Valid until the next call of any method.
  std::span<const Chunk> plan(DraftPlanner& planner);

  /// The chunk's tokens are in the cache now: full blocks become shareable.
  void commit(const Chunk& chunk);
  /// A draft of the step has become the last of the sequence's tokens: it is in the cache, too.
  void commit_draft(Sequence& sequence);

  /// How long the last plan took, for --target-itl-ms.
  void observe_step(double seconds);

  /// Starts a choice as a running sequence on the lead's computed prompt. Sharing stops at the last
  /// full block: `copied`, if set, says which row to copy where. False when seats or blocks are
  /// short; the choice then has to wait and compute its tail again.
  struct CopiedBlock {
    BlockId from, to;
  };
  [[nodiscard]] bool start_choice(const Sequence& lead, Sequence& choice,
                                  std::optional<CopiedBlock>& copied);

  /// Nobody else will find what the sequence's blocks hold.
  void forget(Sequence& sequence) { sequence.table.forget(pool_); }

  /// False, and nothing done, while blocks are in use and not `force`. With `force`, sequences that
  /// run keep their blocks, but nobody else will find them.
  bool reset_prefix_cache(bool force);

  std::int32_t num_running() const { return static_cast<std::int32_t>(running_.size()); }
  std::int32_t num_waiting() const { return waiting_.size() + adapters_.num_parked(); }
  const BlockPool& pool() const { return pool_; }
  /// Asserts the pool's invariants and that its references are those of running sequences.
  void check_integrity() const;

 private:
  void plan_running(bool is_decode_pass);
  bool plan_one(Sequence& sequence);
  void plan_drafts(DraftPlanner& planner);
  void give_room(Chunk& chunk, std::int32_t num_drafts, std::int32_t& budget);
  std::int32_t expected_prompt_rows();
  std::int32_t draft_limit(const Sequence& sequence) const;
  void admit_waiting();
  Sequence* next_waiting();
  bool admit(Sequence& sequence);
  bool has_seat_for(const Sequence& sequence);
  bool find_blocks_for(Sequence& sequence, std::int32_t& num_tokens);
  std::int32_t chunk_size(const Sequence& sequence) const;
  void add_chunk(Sequence& sequence, std::int32_t num_tokens);
  void count_admission(Sequence& sequence, std::int32_t num_cached);
  void match_prefix(Sequence& sequence, PrefixMatch& match);
  std::int32_t admission_cost(Sequence& sequence);

  void preempt(Sequence& victim);
  /// Preempts the last running sequence if `sequence` has a smaller priority value.
  bool preempt_for(const Sequence& sequence);
  bool could_fit_by_preemption(const Sequence& sequence, std::int32_t num_needed) const;
  void insert_running(Sequence& sequence);

  const EngineOptions& options_;
  ModelRunner& runner_;
  EngineStats& stats_;
  std::int32_t max_prompt_rows_ = 0;
  std::int32_t watermark_ = 0;  // blocks that admission leaves free for those that run

  BlockPool pool_;
  BlockHasher hasher_;
  PrefillPacer pacer_;
  SequenceOrder order_;
  WaitingQueue waiting_;
  AdapterTurns adapters_;
  std::vector<Sequence*> running_;  // by (priority, arrival)

  std::vector<Chunk> chunks_;                        // of the step being planned
  std::vector<DraftPlanner::Candidate> candidates_;  // decodes that may draft, as chunks_
  std::vector<Chunk*> drafting_;                     // theirs
  std::int32_t token_budget_ = 0;
  std::int32_t prefill_budget_ = 0;  // of token_budget_, for chunks of more than one token
  std::int32_t prompt_row_budget_ = 0;
  bool has_preempted_ = false;
  PrefixMatch match_;       // of the sequence being admitted
  PrefixMatch cost_match_;  // scratch of admission_cost
};

}  // namespace winnow
