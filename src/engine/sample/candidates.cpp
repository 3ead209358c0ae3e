#include "engine/sample/candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace winnow {
namespace {

using Difference = std::ptrdiff_t;

void keep_first_k(std::vector<Candidate>& list, std::size_t k) {
  if (list.size() <= k) return;
  std::nth_element(list.begin(), list.begin() + static_cast<Difference>(k) - 1, list.end(),
                   is_ahead);
  list.resize(k);
}

}  // namespace

void select_top_k(std::span<const float> logits, std::int32_t k, std::vector<Candidate>& out) {
  constexpr std::size_t kTile = 32;  // looked at as a whole first: most hold nothing of interest
  const auto wanted = static_cast<std::size_t>(k);
  const std::size_t capacity = std::max<std::size_t>(wanted * 2, wanted + 1024);
  out.clear();
  // Ids rise, so once k tokens are held a newcomer that only equals the k-th stays behind it.
  float threshold = -std::numeric_limits<float>::infinity();
  bool is_full = false;
  for (std::size_t begin = 0; begin < logits.size(); begin += kTile) {
    const std::span<const float> tile =
        logits.subspan(begin, std::min(kTile, logits.size() - begin));
    if (is_full) {
      float highest = tile[0];
      for (const float x : tile) highest = x > highest ? x : highest;
      if (!(highest > threshold)) continue;
    }
    for (std::size_t i = 0; i < tile.size(); ++i) {
      if (is_full && !(tile[i] > threshold)) continue;
      out.push_back({.logit = tile[i], .token = static_cast<TokenId>(begin + i)});
    }
    if (out.size() >= capacity) {
      keep_first_k(out, wanted);
      is_full = true;
      threshold = out[wanted - 1].logit;  // nth_element put the last of the k there
    }
  }
  keep_first_k(out, wanted);
}

std::uint64_t weight_mass(float weight) {
  return static_cast<std::uint64_t>(static_cast<double>(weight) * 0x1p40);
}

void keep_top_p(std::vector<Candidate>& candidates, double top_p, std::uint64_t total_mass) {
  constexpr Difference kSmall = 32;
  const auto target =
      static_cast<std::uint64_t>(std::ceil(top_p * static_cast<double>(total_mass)));
  const auto begin = candidates.begin();
  Difference low = 0;
  auto high = std::ssize(candidates);
  std::uint64_t ahead = 0;  // mass of [0, low), all of it ahead of [low, high)
  while (high - low > kSmall) {
    const Difference middle = low + (high - low) / 2;
    std::nth_element(begin + low, begin + middle, begin + high, is_ahead);
    std::uint64_t mass = 0;
    for (Difference i = low; i < middle; ++i) {
      mass += weight_mass(candidates[static_cast<std::size_t>(i)].weight);
    }
    if (ahead + mass >= target) {
      high = middle;
    } else {
      ahead += mass;
      low = middle;
    }
  }
  std::sort(begin + low, begin + high, is_ahead);
  while (low < high && (ahead < target || low == 0)) {
    ahead += weight_mass(candidates[static_cast<std::size_t>(low)].weight);
    ++low;
  }
  candidates.resize(static_cast<std::size_t>(low));
}

}  // namespace winnow
