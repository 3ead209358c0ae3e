#include "engine/sample/draw.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/exact_math.h"
#include "base/random.h"
#include "engine/sample/row_kernels.h"

namespace winnow {
namespace {

constexpr std::uint32_t kPerCall = 4;  // Philox gives four draws at a time: four tokens share one

constexpr int kSlotShift = 8;  // above the streams

Philox4 numbers(const DrawKey& key, std::uint32_t group, std::uint32_t stream) {
  return philox4x32(key.seed, {group, key.position, key.choice, key.slot << kSlotShift | stream});
}

/// Keeps the first to finish. -log(u) ≥ 1 - u settles most tokens from the high half of u alone;
/// only the rest costs the low half and a logarithm.
class Race {
 public:
  Race(const DrawKey& key, DrawStream stream)
      : key_(key), stream_(static_cast<std::uint32_t>(stream)) {}

  void enter(TokenId token, float weight, std::uint32_t high) {
    if (!(weight > 0.0F)) return;
    if (static_cast<double>(~high) * 0x1p-32 > best_ * static_cast<double>(weight)) return;
    const auto id = static_cast<std::uint32_t>(token);
    const std::uint32_t low = numbers(key_, id / kPerCall, stream_ + 1)[id % kPerCall];
    const double time = -natural_log(uniform_open(high, low)) / static_cast<double>(weight);
    if (time < best_ || (time == best_ && token < winner_)) {
      best_ = time;
      winner_ = token;
    }
  }
  void enter(TokenId token, float weight) {
    const auto id = static_cast<std::uint32_t>(token);
    enter(token, weight, numbers(key_, id / kPerCall, stream_)[id % kPerCall]);
  }

  TokenId winner() const { return winner_; }
  double best() const { return best_; }

 private:
  DrawKey key_;
  std::uint32_t stream_;
  double best_ = std::numeric_limits<double>::infinity();
  TokenId winner_ = 0;
};

}  // namespace

TokenId draw_candidate(std::span<const Candidate> candidates, const DrawKey& key,
                       DrawStream stream) {
  Race race(key, stream);
  for (const Candidate& candidate : candidates) race.enter(candidate.token, candidate.weight);
  return race.winner();
}

TokenId draw_weights(std::span<const float> weights, const DrawKey& key, DrawStream stream) {
  Race race(key, stream);
  for (std::size_t begin = 0; begin < weights.size(); begin += kPerCall) {
    const std::size_t size = std::min<std::size_t>(kPerCall, weights.size() - begin);
    const std::span<const float> group = weights.subspan(begin, size);
    if (std::ranges::none_of(group, [](float weight) { return weight > 0.0F; })) continue;
    const Philox4 high = numbers(key, static_cast<std::uint32_t>(begin) / kPerCall,
                                 static_cast<std::uint32_t>(stream));
    for (std::size_t i = 0; i < size; ++i) {
      race.enter(static_cast<TokenId>(begin + i), group[i], high[i]);
    }
  }
  return race.winner();
}

TokenId draw_weights(std::span<const float> weights, std::span<const TokenId> ids,
                     const DrawKey& key, DrawStream stream) {
  Race race(key, stream);
  for (std::size_t j = 0; j < ids.size(); ++j) race.enter(ids[j], weights[j]);
  return race.winner();
}

double draw_uniform(const DrawKey& key, DrawStream stream) {
  const Philox4 drawn = numbers(key, 0, static_cast<std::uint32_t>(stream));
  return uniform_open(drawn[0], drawn[1]);
}

TokenId draw_row(const RowDraw& row, const DrawKey& key) {
  Race race(key, DrawStream::kToken);
  race.enter(row.argmax, 1.0F);  // a good time to beat from the start
  const RowKernels& kernels = row_kernels();
  DrawTile high;
  std::array<float, kDrawTile> weight;
  std::array<float, kDrawTile> hope;  // lower bound of the finishing time times the weight
  for (std::size_t begin = 0; begin < row.logits.size(); begin += kDrawTile) {
    const std::size_t size = std::min(kDrawTile, row.logits.size() - begin);
    kernels.fill_weights(row.logits.subspan(begin, size), row.max, row.inverse_temperature, weight);
    kernels.fill_numbers(key.seed, static_cast<std::uint32_t>(begin) / kPerCall,
                         {key.position, key.choice, static_cast<std::uint32_t>(DrawStream::kToken)},
                         high);
    // In fp32, made smaller by more than its rounding errors; enter() decides exactly.
    const auto best = static_cast<float>(race.best() * (1.0 + 0x1p-20));
    std::int32_t num_hopeful = 0;
    for (std::size_t i = 0; i < size; ++i) {
      hope[i] = static_cast<float>(static_cast<std::int32_t>(~high[i] >> 8)) * 0x1p-24F;
      weight[i] = weight[i] < row.min_weight ? 0.0F : weight[i];
      num_hopeful += hope[i] <= best * weight[i] ? 1 : 0;
    }
    if (num_hopeful == 0) continue;
    for (std::size_t i = 0; i < size; ++i) {
      if (hope[i] <= best * weight[i]) {
        race.enter(static_cast<TokenId>(begin + i), weight[i], high[i]);
      }
    }
  }
  return race.winner();
}

}  // namespace winnow
