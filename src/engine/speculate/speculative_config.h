// What `--speculative-config` says: vLLM's keys with vLLM's meanings, checked. Source:
// spec/speculative.md 6.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/speculate/draft.h"
#include "engine/speculate/draft_length.h"

namespace winnow {

struct SpeculativeConfig {
  std::string model;                       // folder of the drafter; empty: the target's own
  std::optional<std::int32_t> num_drafts;  // K; none: the drafter's block size
  std::string kv_cache_dtype;              // "auto", "bf16" or "fp8"; empty: not said
  bool is_greedy_draft = true;             // drafts are the drafter's highest logits
  AcceptMethod method = AcceptMethod::kStandard;
  std::optional<double> synthetic_length;  // at most one of these two, and then benchmarks only
  std::vector<double> synthetic_rates;
  std::optional<std::int32_t> draft_tensor_parallel_size;
  std::optional<std::int32_t> draft_top_k;  // q covers so many tokens; none: the vocabulary
  std::string quantization;                 // empty: what the drafter's config says
  std::optional<std::int32_t> max_model_len;
  bool is_adaptive = false;  // enable_adaptive_verification: draft_length.h decides
  std::vector<BatchDraftLength> lengths_by_batch;  // ascending, apart; empty: K throughout
  std::vector<std::string> notes;                  // what was understood and has no effect here

  bool is_synthetic() const { return synthetic_length.has_value() || !synthetic_rates.empty(); }
};

/// Whether acceptance by decree may be asked for: its text means nothing.
enum class SyntheticSwitch { kRefused, kAllowed };

/// Checks all that can be checked without a model. Throws Error{kInvalidArgument} for unknown keys
/// (listing the known), wrong types, ranges and combinations, Error{kUnsupported} for other methods
/// than dspark and for synthetic acceptance where it is refused. null means not given.
SpeculativeConfig parse_speculative_config(const nlohmann::json& config, SyntheticSwitch synthetic);

/// What target, drafter and command line add.
struct DraftFacts {
  std::int32_t block_size = 0;  // the drafter was trained for so many drafts
  std::int32_t vocab_size = 0;
  std::int32_t draft_max_len = 0, target_max_len = 0;
  std::int32_t tensor_parallel_size = 1;
  std::string quantization{};         // the drafter's own; empty: none
  std::string target_kv_cache_dtype;  // as resolved: "bf16", "fp8", "nvfp4"
};

/// Fills in what was not said: num_drafts, kv_cache_dtype, draft_tensor_parallel_size,
/// max_model_len. Throws Error{kInvalidArgument} where config and facts contradict each other.
void resolve_speculative_config(SpeculativeConfig& config, const DraftFacts& facts);

}  // namespace winnow
