#include "engine/speculate/draft.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/sample/row_kernels.h"

namespace winnow {

bool DraftDistribution::is_usable() const {
  return is_one_hot() || (total > 0 && total < std::numeric_limits<double>::infinity());
}

double DraftDistribution::probability(TokenId token, TokenId drafted) const {
  if (is_one_hot()) return token == drafted ? 1.0 : 0.0;
  if (token < 0) return 0.0;
  auto index = static_cast<std::size_t>(token);
  if (!ids.empty()) {
    const auto found = std::ranges::lower_bound(ids, token);
    if (found == ids.end() || *found != token) return 0.0;
    index = static_cast<std::size_t>(found - ids.begin());
  }
  return index < weights.size() ? static_cast<double>(weights[index]) / total : 0.0;
}

bool fill_draft_weights(std::span<const float> logits, std::span<const TokenId> ids,
                        const SampleRules& rules, DraftWeights& out) {
  const RowScan scan = row_kernels().scan(logits);
  if (scan.is_bad || scan.max == -std::numeric_limits<float>::infinity()) return false;
  out.weights.resize(logits.size());
  out.ids.assign(ids.begin(), ids.end());
  row_kernels().fill_weights(logits, scan.max, 1.0F / rules.params->temperature, out.weights);
  out.total = 0;
  for (const float weight : out.weights) out.total += static_cast<double>(weight);
  return true;
}

TokenId propose_token(const DraftDistribution& q, const DrawKey& anchor, AcceptMethod method) {
  DrawKey key = anchor;
  DrawStream stream = DrawStream::kProposal;
  if (method == AcceptMethod::kCoupled) {
    key.position = anchor.position + anchor.slot;
    key.slot = 0;
    stream = DrawStream::kToken;
  }
  return q.ids.empty() ? draw_weights(q.weights, key, stream)
                       : draw_weights(q.weights, q.ids, key, stream);
}

}  // namespace winnow
