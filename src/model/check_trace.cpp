#include "model/check_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "formats/bulk_codecs.h"

namespace winnow {
namespace {

/// The indexer's scores of one (token, index head), in doubles, from what the cache holds.
class BlockScores {
 public:
  BlockScores(const BlockSelectionView& selection, std::int64_t token, std::int64_t head)
      : selection_(selection),
        position_(selection.batch.positions[token]),
        query_(selection.index_q.data() +
               (token * selection.shape.num_index_heads + head) * selection.shape.index_head_dim),
        block_table_(
            selection.batch.sequences[static_cast<std::size_t>(selection.batch.sequence_of[token])]
                .block_table) {}

  double of_block(std::int32_t block) const {
    const CacheRowLayout& layout = *selection_.cache.layout;
    const CachePlane plane = layout.index_k(selection_.layer);
    const std::int32_t block_tokens = layout.shape().block_tokens;
    const std::byte* const row =
        selection_.cache.pool + std::int64_t{block_table_[block]} * layout.row_bytes();
    std::vector<float> key(static_cast<std::size_t>(plane.dim));
    double best = -std::numeric_limits<double>::infinity();
    const std::int32_t count = std::min(block_tokens, position_ - block * block_tokens + 1);
    for (std::int32_t t = 0; t < count; ++t) {
      decode_cache_vector(plane.dtype, selection_.cache.mode, plane.data(row, t),
                          plane.scales(row, t), key, kScalarCodecs);
      double score = 0.0;
      for (std::size_t d = 0; d < key.size(); ++d) score += double{query_[d]} * double{key[d]};
      best = std::max(best, score);
    }
    return best;
  }

 private:
  const BlockSelectionView& selection_;
  std::int32_t position_;
  const float* query_;
  const std::int32_t* block_table_;
};

/// Whether the two sets hold equally many blocks and differ only in ones whose scores tie.
bool is_tie(const std::set<std::int32_t>& ours, const std::set<std::int32_t>& reference,
            const BlockScores& scores, double tolerance) {
  if (ours.size() != reference.size()) return false;
  double lowest = std::numeric_limits<double>::infinity();
  double highest = -std::numeric_limits<double>::infinity();
  double magnitude = 0.0;
  const auto add = [&](const std::set<std::int32_t>& from, const std::set<std::int32_t>& other) {
    for (const std::int32_t block : from) {
      const double score = scores.of_block(block);
      magnitude = std::max(magnitude, std::abs(score));
      if (other.contains(block)) continue;
      lowest = std::min(lowest, score);
      highest = std::max(highest, score);
    }
  };
  add(ours, reference);
  add(reference, ours);
  return std::isfinite(magnitude) && highest - lowest <= tolerance * magnitude;
}

std::set<std::int32_t> as_set(std::span<const std::int32_t> list) {
  std::set<std::int32_t> set(list.begin(), list.end());
  set.erase(-1);
  return set;
}

}  // namespace

void CheckTrace::on_blocks(const BlockSelectionView& selection) {
  const std::vector<std::int32_t>& golden = golden_.blocks.at(selection.layer);
  const std::int64_t top_k = selection.shape.top_k_blocks;
  const std::int64_t num_heads = selection.shape.num_index_heads;
  const std::int64_t num_tokens = std::ssize(golden_.prompt);
  ChoiceComparison& comparison = blocks_[selection.layer];
  for (std::int64_t t = 0; t < selection.batch.num_tokens; ++t) {
    const std::int64_t position = selection.batch.positions[t];
    if (position >= num_tokens) continue;
    for (std::int64_t g = 0; g < num_heads; ++g) {
      const auto row = [&](const std::int32_t* base, std::int64_t index) {
        return as_set({base + index * top_k, static_cast<std::size_t>(top_k)});
      };
      const auto ours = row(selection.blocks.data(), t * num_heads + g);
      const auto reference = row(golden.data(), g * num_tokens + position);
      if (ours == reference) {
        comparison.add_equal();
      } else {
        comparison.add_different(is_tie(ours, reference, BlockScores(selection, t, g), tolerance_));
      }
    }
  }
}

void CheckTrace::on_experts(int layer, const ops::BatchView& batch,
                            std::span<const std::int32_t> experts, std::span<const float> weights) {
  const std::vector<std::int32_t>& golden = golden_.experts.at(layer);
  const std::vector<float>& golden_weights = golden_.expert_weights.at(layer);
  const std::size_t top_k = golden.size() / golden_.prompt.size();
  for (std::int32_t t = 0; t < batch.num_tokens; ++t) {
    const auto position = static_cast<std::size_t>(batch.positions[t]);
    if (position >= golden_.prompt.size()) continue;
    // Both as maps from expert to weight: orders differ.
    std::map<std::int32_t, float> ours;
    std::map<std::int32_t, float> reference;
    for (std::size_t slot = 0; slot < top_k; ++slot) {
      const std::size_t at = static_cast<std::size_t>(t) * top_k + slot;
      ours[experts[at]] = weights[at];
      reference[golden[position * top_k + slot]] = golden_weights[position * top_k + slot];
    }
    if (!std::ranges::equal(
            ours, reference, {}, [](const auto& entry) { return entry.first; },
            [](const auto& entry) { return entry.first; })) {
      experts_[layer].add_different(false);
      continue;
    }
    experts_[layer].add_equal();
    for (const auto& [expert, weight] : ours) {
      expert_weights_[layer].add({&weight, 1}, {&reference.at(expert), 1});
    }
  }
}

void CheckTrace::on_hidden(int layer, const ops::BatchView& batch, std::span<const float> hidden) {
  const std::vector<float>& golden = golden_.hidden.at(layer);
  const std::size_t width = golden.size() / golden_.positions.size();
  for (std::int32_t t = 0; t < batch.num_tokens; ++t) {
    const auto found = std::ranges::find(golden_.positions, batch.positions[t]);
    if (found == golden_.positions.end()) continue;
    const auto row = static_cast<std::size_t>(found - golden_.positions.begin());
    hidden_[layer].add(hidden.subspan(static_cast<std::size_t>(t) * width, width),
                       std::span(golden).subspan(row * width, width));
  }
}

std::vector<CheckLine> CheckTrace::lines() const {
  std::vector<CheckLine> lines;
  for (const auto& [layer, comparison] : hidden_) {
    if (blocks_.contains(layer)) {
      lines.push_back(blocks_.at(layer).line(fmt::format("layer {} blocks", layer)));
    }
    if (experts_.contains(layer)) {
      lines.push_back(experts_.at(layer).line(fmt::format("layer {} experts", layer)));
    }
    if (expert_weights_.contains(layer)) {
      lines.push_back(expert_weights_.at(layer).line(fmt::format("layer {} expert weights", layer),
                                                     tolerance_));
    }
    lines.push_back(comparison.line(fmt::format("layer {} hidden", layer), tolerance_));
  }
  return lines;
}

}  // namespace winnow
