// Compares what happens inside the steps of a prompt with its golden outputs.
#pragma once

#include <map>
#include <vector>

#include "model/comparison.h"
#include "model/decoder_trace.h"
#include "model/golden.h"

namespace winnow {

/// Watches steps of one sequence, whose positions are those of the golden prompt.
class CheckTrace final : public DecoderTrace {
 public:
  /// `golden` outlives this. Scores within `tolerance` of the largest score count as tied.
  CheckTrace(const Golden& golden, double tolerance) : golden_(golden), tolerance_(tolerance) {}

  void on_blocks(const BlockSelectionView& selection) override;
  void on_experts(int layer, const ops::BatchView& batch, std::span<const std::int32_t> experts,
                  std::span<const float> weights) override;
  void on_hidden(int layer, const ops::BatchView& batch, std::span<const float> hidden) override;

  std::vector<CheckLine> lines() const;

 private:
  const Golden& golden_;
  double tolerance_;
  std::map<int, ValueComparison> hidden_;
  std::map<int, ChoiceComparison> blocks_;
  std::map<int, ChoiceComparison> experts_;
  std::map<int, ValueComparison> expert_weights_;
};

}  // namespace winnow
