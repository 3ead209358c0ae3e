// Random LoRA adapters in PEFT's format for the checkpoints of random_checkpoint.h, and those
// checkpoints with an adapter merged into their weights: what running it beside them must equal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/testing/random_checkpoint.h"

namespace winnow {

struct RandomAdapter {
  enum class Experts { kNone, kOneByOne, kStacked, kOneAlone };  // kOneAlone: expert 1, stacked

  std::int32_t rank = 4;
  double alpha = 8.0;
  bool on_attention = true;  // q, k, v, o, and the index branch's projections
  bool on_mlps = true;       // dense MLPs and shared experts
  Experts experts = Experts::kStacked;
  std::uint64_t seed = 1;
};

/// W[module] += scale · B · A, by the name that the checkpoint has for the module.
struct AdapterDelta {
  std::string module;
  std::int64_t rank = 0;
  double scale = 0;
  std::vector<float> a;  // [rank][inputs]
  std::vector<float> b;  // [outputs][rank]
};

/// Layer 0 has dense attention and a dense MLP, layer 1 an index branch and two experts; no two
/// projections have the same sizes by chance. What adapters in a few lines are written for.
ModelConfig smallest_lora_target();

/// Writes adapter_config.json and adapter_model.safetensors (F32) into `folder` (created). Entries
/// are of a size that moves a projection's output by about a tenth.
std::vector<AdapterDelta> write_random_adapter(const std::filesystem::path& folder,
                                               const RandomCheckpoint& model,
                                               const RandomAdapter& adapter);

/// `from` with every matrix in F32 and the deltas merged into them.
void write_merged_checkpoint(const std::filesystem::path& from,
                             const std::vector<AdapterDelta>& deltas,
                             const std::filesystem::path& to);

}  // namespace winnow
