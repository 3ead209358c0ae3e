// A request and its sequences as the engine thread keeps them. A request starts as one sequence,
// the lead; once the prompt is computed every further choice becomes a sequence that shares the
// prompt's full blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cache/block_table.h"
#include "engine/request.h"
#include "engine/sample/sample_rules.h"
#include "engine/sample/sampler.h"
#include "engine/speculate/draft_length.h"
#include "engine/speculate/verify.h"

namespace winnow {

struct RequestState;

enum class SequencePhase { kWaiting, kRunning, kEnded };

/// What a sequence was proposed for this step, and what came of it.
struct DraftBlock {
  std::vector<TokenId> tokens;
  std::vector<DraftDistribution> distributions;  // one per token; none: all one-hot
  std::vector<DraftWeights> weights;             // what they view; kept for its memory
  std::vector<float> confidences;                // one per token, where the drafter has a head
  double survival = 1.0;                         // of the tokens so far, by those
  std::optional<double> cut_rate;                // of the slot that confidence gave up; none: whole
  Verified verified;                             // once the step has run, if there are tokens

  void clear() {
    tokens.clear();
    distributions.clear();
    confidences.clear();
    survival = 1.0;
    cut_rate.reset();
    verified.tokens.clear();
    verified.num_accepted = 0;
  }
  std::int32_t size() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t num_accepted() const { return verified.num_accepted; }
};

/// What past steps say about drafting for a sequence.
struct DraftMemory {
  AcceptanceHistory history{kSequenceDecay};
  std::int32_t last_length = -1;      // as chosen; 0 after a probe, -1: never
  std::int64_t num_blocks = 0;        // verified
  bool is_probe = false;              // this step's drafts are to learn from
  std::optional<bool> is_followed{};  // the drafter keeps its context; none: not decided yet
};

struct Sequence {
  RequestState* request = nullptr;
  std::int32_t choice = 0;  // of the lead: settled when the prompt is computed
  SequencePhase phase = SequencePhase::kWaiting;

  std::vector<TokenId> tokens;  // prompt and output
  std::int32_t num_prompt = 0;
  std::int32_t num_computed = 0;  // leading tokens whose values are in the cache
  std::int32_t num_ever_computed =
      0;  // the most num_computed has been: computing them is repetition
  BlockTable table;
  DraftMemory drafting;
  DraftBlock draft;  // stands after `tokens`, and is part of none of the counts here

  std::int32_t admission_cost = 0;  // uncached prompt tokens, for fairness; 0: not looked up yet

  std::int32_t num_tokens() const { return static_cast<std::int32_t>(tokens.size()); }
  std::int32_t num_output() const { return num_tokens() - num_prompt; }
  /// Tokens without cached values: 1 while decoding.
  std::int32_t num_missing() const { return num_tokens() - num_computed; }
};

struct ChoiceState {
  bool is_finished = false;
  SampleState sample;  // made when its first token is drawn
};

struct RequestState {
  RequestId id = 0;
  GenerationRequest request;  // its prompt has moved to the lead
  std::unique_ptr<SampleRules> rules;
  RequestStats stats;

  std::vector<ChoiceState> choices;
  std::int32_t num_unfinished = 0;
  std::vector<std::unique_ptr<Sequence>> sequences;  // the lead first
  bool is_admitted = false;                          // its counters of first admission are settled
  bool has_left_queue = false;                       // admitted, or ended before
  bool has_sampled = false;  // the prompt is computed and every choice is a sequence of its own
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;  // [num_prompt] while collected

  Sequence& lead() { return *sequences.front(); }
  /// Logits of all prompt positions are needed, so cached ones do not help.
  bool wants_prompt_logits() const {
    return request.sampling.prompt_logprobs.has_value() && !has_sampled;
  }
};

}  // namespace winnow
