// The tokens a draw chooses from: top-k and top-p without sorting the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct Candidate {
  float logit = 0.0F;
  TokenId token = 0;
  float weight = 0.0F;  // e^((logit - max) / T)
};

/// The total order of every list of tokens: higher logit first, equal logits by lower id.
inline bool is_ahead(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

/// The k tokens that are ahead of all others, in no particular (but a reproducible) order; all of
/// them when k ≥ the vocabulary. Weights are left 0. O(vocabulary) for small k.
void select_top_k(std::span<const float> logits, std::int32_t k, std::vector<Candidate>& out);

/// A weight as an integer multiple of 2^-40: sums of these are exact in any order, so that where
/// top-p cuts does not depend on how it is searched.
std::uint64_t weight_mass(float weight);

/// Keeps the shortest run of leading candidates (by is_ahead) whose mass reaches
/// top_p * total_mass, at least one. O(candidates).
void keep_top_p(std::vector<Candidate>& candidates, double top_p, std::uint64_t total_mass);

}  // namespace winnow
