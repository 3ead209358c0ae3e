// Random inputs for tests of operations, from a seed that a failure prints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace winnow::ops::testing {

/// WINNOW_SEED from the environment, or a fresh one for this process.
std::uint64_t run_seed();

/// Draws depend on the seed, `stream` (one per case, so that cases do not shift each other) and the
/// number of draws so far.
class RandomInputs {
 public:
  explicit RandomInputs(std::uint64_t stream, std::uint64_t seed = run_seed());

  std::uint32_t bits();
  /// In [0, end).
  std::int64_t below(std::int64_t end);
  float uniform(float low, float high);
  /// Roughly normal: mean 0, standard deviation 1, never beyond 6.
  float normal();
  std::vector<float> normals(std::int64_t count, float scale = 1.0F);
  std::vector<std::uint8_t> bytes(std::int64_t count);
  /// A random order of 0 … count - 1.
  std::vector<std::int32_t> permutation(std::int32_t count);

  /// "WINNOW_SEED=… stream …": for SCOPED_TRACE.
  std::string describe() const;

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint32_t drawn_ = 0;
};

/// Fills with bytes that are NaN in every format read here (fp32, bf16, E4M3, E8M0).
void poison(std::span<std::byte> bytes);
/// `count` floats, all NaN: an output that was not written then shows.
std::vector<float> poisoned(std::int64_t count);

}  // namespace winnow::ops::testing
