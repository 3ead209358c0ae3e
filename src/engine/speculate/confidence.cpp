#include "engine/speculate/confidence.h"

#include <algorithm>
#include <cstddef>

namespace winnow {
namespace {

constexpr double kDecay = 0.998;       // of a bucket's counts with each of its tests
constexpr double kPriorWeight = 16.0;  // tests that the prior counts for

}  // namespace

std::size_t ConfidenceCalibration::bucket_of(float confidence) {
  if (!(confidence > 0.0F)) return 0;
  const auto bucket = static_cast<std::size_t>(std::min(confidence, 1.0F) * kNumBuckets);
  return std::min<std::size_t>(bucket, kNumBuckets - 1);
}

void ConfidenceCalibration::observe(float confidence, bool is_accepted) {
  Count& count = counts_[bucket_of(confidence)];
  count.tested = count.tested * kDecay + 1.0;
  count.accepted = count.accepted * kDecay + (is_accepted ? 1.0 : 0.0);
}

double ConfidenceCalibration::rate(float confidence, double prior) const {
  const Count& count = counts_[bucket_of(confidence)];
  return (count.accepted + kPriorWeight * prior) / (count.tested + kPriorWeight);
}

}  // namespace winnow
