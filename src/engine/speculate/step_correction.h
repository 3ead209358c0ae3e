// How far the times of real steps are from those that costs foretell, by how many sequences decode:
// what drafting really takes beside plain decoding, whatever the costs left out.
#pragma once

#include <array>
#include <cstdint>

#include "engine/speculate/step_cost.h"

namespace winnow {

/// Of one step. Where a device works while the host goes on, `context` is only what the host saw.
struct StepTimes {
  double target = 0;   // everything but the two others
  double draft = 0;    // proposing drafts
  double context = 0;  // putting tokens into the drafter's context

  double total() const { return target + draft + context; }
};

/// One thread.
class StepCorrection {
 public:
  /// For steps in which so many sequences decode. What was not seen at that size is as it was at
  /// any; what was never seen is as costs say, verification as far off as plain steps.
  StepFactors factors(std::int32_t num_sequences) const;

  /// A step of decodes only has taken `seen`; `expected` are costs without factors. A step that
  /// something else delayed counts as twice what was believed of it, no more.
  void observe(std::int32_t num_sequences, bool has_drafts, const StepTimes& expected,
               const StepTimes& seen);

 private:
  /// Mean of the first observations, then mostly of the latest ones.
  class Ratio {
   public:
    void observe(double expected, double seen, std::int64_t step);
    bool is_known() const { return num_seen_ > 0; }
    double value() const { return value_; }

   private:
    double value_ = 1.0;
    std::int64_t num_seen_ = 0, last_step_ = 0;
  };
  struct Ratios {
    Ratio plain, verify, draft;
  };
  static constexpr int kNumSizes = 12;  // one for each power of two
  static std::size_t size_of(std::int32_t num_sequences);
  static void observe(Ratios& ratios, bool has_drafts, const StepTimes& expected,
                      const StepTimes& seen, std::int64_t step);

  std::array<Ratios, kNumSizes> sizes_;
  Ratios any_;
  std::int64_t num_steps_ = 0;
  double context_seconds_ = 0;  // of a step, beyond what is expected
};

}  // namespace winnow
