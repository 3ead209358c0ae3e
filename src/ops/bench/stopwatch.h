// Best and median of repeated calls: on a shared machine the best is the least disturbed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace winnow::ops {

struct Timing {
  double best = 0;
  double median = 0;
};

/// Calls f(0), f(1), … f(count - 1), f(0), … until `seconds` have passed, each at least three
/// times, after one round that is not counted. Each call is timed on its own: a short call can fall
/// between two disturbances where a long round cannot.
template <typename F>
Timing time_each(double seconds, std::int64_t count, const F& f) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (std::int64_t i = 0; i < count; ++i) f(i);
  std::vector<double> times;
  const Clock::time_point begin = Clock::now();
  for (std::int64_t round = 0; round < 3 || since(begin) < seconds; ++round) {
    for (std::int64_t i = 0; i < count; ++i) {
      const Clock::time_point start = Clock::now();
      f(i);
      times.push_back(since(start));
    }
  }
  std::ranges::sort(times);
  return {.best = times.front(), .median = times[times.size() / 2]};
}

/// The same for one call.
template <typename F>
Timing time_calls(double seconds, const F& f) {
  return time_each(seconds, 1, [&](std::int64_t) { f(); });
}

}  // namespace winnow::ops
