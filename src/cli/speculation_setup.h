// From --speculative-config to a drafter behind the decoder: read and checked before any weights
// are, loaded once the decoder stands. Source: spec/speculative.md 6.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/drafter_config.h"
#include "cli/engine_flags.h"
#include "engine/engine.h"
#include "engine/speculate/speculative_config.h"
#include "model/dspark_drafter.h"
#include "ops/memory.h"

namespace winnow {
class Decoder;
struct DecoderOptions;
}  // namespace winnow

namespace winnow::cli {

struct SpeculationPlan {
  std::filesystem::path folder;  // of the target or of the drafter: see find_drafter()
  SpeculativeConfig config;      // resolved
  DrafterConfig drafter;
  CacheDType cache_dtype = CacheDType::kFp8;  // of the drafter's context
};

/// What target and command line say, as far as drafts depend on it.
struct SpeculationTarget {
  const std::filesystem::path& folder;
  const ModelConfig& config;
  CacheDType cache_dtype;  // as resolved
  std::int64_t max_model_len = 0;
};

/// none: --speculative-config is not given. Reads config files only; logs what will not take
/// effect. Throws Error for what cannot work: no drafter, one of another shape, members that
/// contradict it.
std::optional<SpeculationPlan> plan_speculation(const EngineFlags& flags,
                                                const SpeculationTarget& target);

/// What the decoder keeps for the drafter: streams and room in the cache row.
void add_drafter_options(const SpeculationPlan& plan, DecoderOptions& options);

/// Loads the drafter and hands it to the decoder, which it must outlive.
LoadedDrafter attach_drafter(const SpeculationPlan& plan, Decoder& decoder,
                             std::int64_t max_model_len, const PackingProgress& progress);

SpeculationOptions speculation_options(const SpeculationPlan& plan);

/// Bytes of `memory` that steps will fill besides the pool and are not allocated yet: rows of
/// logits, the drafter's among them, and the distributions that drafts are drawn from.
std::int64_t logits_bytes(const EngineOptions& options, std::int32_t vocab_size,
                          const ops::Memory& memory);

/// One line for the start-up table, e.g. "up to 7 a step, standard, greedy; fp8 cache".
std::string describe(const SpeculationPlan& plan);

}  // namespace winnow::cli
