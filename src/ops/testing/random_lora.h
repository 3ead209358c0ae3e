// Random adapters, packed for one backend, and rows that have them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/testing/random_matrix.h"

namespace winnow::ops::testing {

/// One adapter at one projection: a pair for each part, as wide as the projection or less.
struct RandomLoraSite {
  struct Part {
    std::int64_t first_row = 0;
    std::int64_t num_rows = 0;
    std::int64_t rank = 0;
    QuantScheme scheme = QuantScheme::kF32;  // of both halves; kF32 or kBF16
  };
  RandomLoraSite(std::int64_t inputs, std::vector<Part> list, RandomInputs& random);

  /// What part `index` adds to its rows for the input x, in doubles.
  std::vector<double> formula(std::size_t index, const float* x, std::int64_t inputs) const;

  std::vector<Part> parts;
  std::vector<RandomMatrix> a, b;
  std::vector<float> scales;  // of every value of u
};

/// Two parts like a fused projection's, ranks 1 to 64, that leave some rows alone.
RandomLoraSite random_lora_site(std::int64_t inputs, std::int64_t outputs, RandomInputs& random);

struct PackedLoraSite {
  PackedLoraSite() = default;  // adds nothing
  PackedLoraSite(const Backend& backend, const RandomLoraSite& source);

  LoraSite view() const { return {.a = a.get(), .scales = scales.data(), .parts = parts}; }

  std::unique_ptr<PackedMatrix> a;
  std::vector<std::unique_ptr<PackedMatrix>> b;
  std::vector<LoraPart> parts;
  std::vector<float> scales;
};

/// One adapter in a feed-forward block.
struct RandomMlpAdapter {
  RandomMlpAdapter(std::int64_t hidden, std::int64_t width, RandomInputs& random)
      : gate_up(random_lora_site(hidden, 2 * width, random)),
        down(random_lora_site(width, hidden, random)) {}

  RandomLoraSite gate_up, down;
};

struct PackedMlpAdapter {
  PackedMlpAdapter() = default;  // adds nothing
  PackedMlpAdapter(const Backend& backend, const RandomMlpAdapter& source)
      : gate_up(backend, source.gate_up), down(backend, source.down) {}

  LoraMlp view() const { return {.gate_up = gate_up.view(), .down = down.view()}; }

  PackedLoraSite gate_up, down;
};

/// How the rows of a batch spread over adapters.
enum class Spread { kNone, kOne, kRuns, kAlternating, kRandom };
inline constexpr Spread kAllSpreads[] = {Spread::kNone, Spread::kOne, Spread::kRuns,
                                         Spread::kAlternating, Spread::kRandom};

std::vector<std::int32_t> adapters_of_rows(Spread spread, std::int64_t num_rows,
                                           std::int32_t num_adapters, RandomInputs& random);

}  // namespace winnow::ops::testing
