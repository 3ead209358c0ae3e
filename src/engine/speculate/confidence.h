// What a drafter's confidence head is worth: its estimates are only numbers until acceptance has
// been counted beside them. Source: spec/speculative.md 4.8.
#pragma once

#include <array>

namespace winnow {

/// Decayed counts of tested and of accepted drafts by the confidence they had. One thread.
class ConfidenceCalibration {
 public:
  /// A draft of this confidence was tested.
  void observe(float confidence, bool is_accepted);

  /// How often drafts of this confidence are accepted. Without evidence it is `prior`, what is
  /// believed of the slot when the head is not asked. NaN counts as 0.
  double rate(float confidence, double prior) const;

 private:
  static constexpr int kNumBuckets = 16;  // of [0, 1], equally wide
  struct Count {
    double tested = 0, accepted = 0;
  };
  static std::size_t bucket_of(float confidence);

  std::array<Count, kNumBuckets> counts_{};
};

}  // namespace winnow
