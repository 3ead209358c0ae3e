// A model of real size without a checkpoint: M3.1's shapes and storage with random weights, made
// where the backend keeps them. For benchmarks: speed does not depend on what the weights say,
// except for the experts that tokens choose, which is counted (CountExperts).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/decoder.h"
#include "model/dspark_drafter.h"

namespace winnow {

/// MiniMax-M3.1's text model with `num_layers` layers, each with MSA, an index cache and experts.
/// Source: spec/model.md section 1. (The published model has 60, the first three with a dense MLP.)
ModelConfig m31_config(std::int32_t num_layers);

/// Bytes of one such layer's weights, and of embedding table and lm_head.
std::int64_t m31_layer_bytes();
std::int64_t m31_head_bytes();

/// Throws Error{kUnsupported} where the backend cannot make weights, Error{kOutOfMemory}.
std::unique_ptr<Decoder> make_synthetic_decoder(const ModelConfig& config,
                                                const ops::Backend& backend,
                                                const DecoderOptions& options,
                                                const PackingProgress& progress = {});

/// The drafter that M3.1 ships, reading five layers of the target (all, if it has fewer), the last
/// among them. Source: spec/speculative.md 1.1.
DrafterConfig m31_drafter_config(std::int32_t num_target_layers);

/// For a decoder whose captured layers and cache row are made for it. Throws as
/// make_synthetic_decoder().
std::unique_ptr<DsparkDrafter> make_synthetic_drafter(const DrafterConfig& config,
                                                      const Decoder& target,
                                                      std::int64_t max_positions);

/// Distinct experts that a step's tokens chose, summed over layers.
class CountExperts final : public DecoderTrace {
 public:
  bool wants_blocks() const override { return false; }
  void on_experts(int layer, const ops::BatchView& batch, std::span<const std::int32_t> experts,
                  std::span<const float> weights) override;

  std::int64_t num_distinct() const { return num_distinct_; }
  void reset() { num_distinct_ = 0; }

 private:
  std::int64_t num_distinct_ = 0;
};

}  // namespace winnow
