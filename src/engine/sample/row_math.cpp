#include "engine/sample/row_math.h"

#include <algorithm>
#include <array>
#include <limits>

#include "engine/sample/exact_math.h"

namespace winnow {
namespace {

constexpr std::size_t kLanes = 16;
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

RowScan scan_row(std::span<const float> logits) {
  std::array<float, kLanes> max;
  std::array<std::int32_t, kLanes> bad{};
  max.fill(kMinusInfinity);
  const std::size_t whole = logits.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      max[lane] = x > max[lane] ? x : max[lane];
      bad[lane] |= x <= kLargest ? 0 : 1;
    }
  }
  for (std::size_t i = whole; i < logits.size(); ++i) {
    const float x = logits[i];
    max[i - whole] = x > max[i - whole] ? x : max[i - whole];
    bad[i - whole] |= x <= kLargest ? 0 : 1;
  }
  RowScan scan{.max = *std::ranges::max_element(max),
               .is_bad = std::ranges::count(bad, 0) != kLanes};
  if (!scan.is_bad) {
    scan.argmax = static_cast<TokenId>(std::ranges::find(logits, scan.max) - logits.begin());
  }
  return scan;
}

double sum_weights(std::span<const float> logits, float max, float inverse_temperature) {
  std::array<double, kLanes> sums{};
  const std::size_t whole = logits.size() / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    std::array<float, kLanes> weights;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      weights[lane] = exp_weight((logits[i + lane] - max) * inverse_temperature);
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[lane];
  }
  for (std::size_t i = whole; i < logits.size(); ++i) {
    sums[i - whole] += exp_weight((logits[i] - max) * inverse_temperature);
  }
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

void fill_weights(std::span<const float> logits, float max, float inverse_temperature,
                  std::span<float> weights) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights[i] = exp_weight((logits[i] - max) * inverse_temperature);
  }
}

std::int32_t rank_of(std::span<const float> logits, TokenId token) {
  const auto at = static_cast<std::size_t>(token);
  const float own = logits[at];
  std::int32_t ahead = 0;
  for (std::size_t i = 0; i < at; ++i) ahead += logits[i] >= own ? 1 : 0;
  for (std::size_t i = at + 1; i < logits.size(); ++i) ahead += logits[i] > own ? 1 : 0;
  return ahead + 1;
}

}  // namespace winnow
