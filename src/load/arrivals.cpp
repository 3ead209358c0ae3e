#include "load/arrivals.h"

#include <cmath>
#include <random>

namespace winnow::load {

std::vector<double> arrival_seconds(const ArrivalOptions& options, std::size_t count) {
  std::vector<double> out(count, 0.0);
  if (std::isinf(options.request_rate) || count < 2) return out;
  std::mt19937_64 bits(options.seed);
  std::gamma_distribution<double> gap(options.burstiness,
                                      1.0 / (options.request_rate * options.burstiness));
  for (std::size_t i = 1; i < count; ++i) out[i] = out[i - 1] + gap(bits);
  // The gap after the last request belongs to the run, but nobody waits for it.
  const double total = out.back() + gap(bits);
  if (total <= 0) return out;
  const double scale = static_cast<double>(count) / options.request_rate / total;
  for (double& second : out) second *= scale;
  return out;
}

}  // namespace winnow::load
