// When requests are sent: all at once, or a renewal process whose gaps are gamma-distributed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace winnow::load {

struct ArrivalOptions {
  double request_rate = std::numeric_limits<double>::infinity();  // a second, above 0
  double burstiness = 1;  // shape of the gaps: 1 a Poisson process, below 1 in bursts, above even
  std::uint64_t seed = 0;
};

/// Seconds since the start, ascending, the first at 0; the same for the same options. The gaps are
/// scaled so that `count` requests take count / request_rate on the whole, as in `vllm bench
/// serve`: short runs at one rate then offer the same load whatever their seed.
std::vector<double> arrival_seconds(const ArrivalOptions& options, std::size_t count);

}  // namespace winnow::load
