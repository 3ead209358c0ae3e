// A feed-forward block with random weights, packed for one backend.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "ops/testing/random_matrix.h"

namespace winnow::ops::testing {

struct RandomMlp {
  RandomMlp(QuantScheme scheme, std::int64_t hidden, std::int64_t width, RandomInputs& random)
      : gate(scheme, width, hidden, random),
        up(scheme, width, hidden, random),
        down(scheme, hidden, width, random) {}

  RandomMatrix gate, up, down;
};

struct PackedMlp {
  PackedMlp(const Backend& backend, const RandomMlp& source)
      : gate_up(backend.pack(std::vector{source.gate.source(), source.up.source()})),
        down(backend.pack(std::vector{source.down.source()})) {}

  MlpWeights weights() const { return {.gate_up = gate_up.get(), .down = down.get()}; }

  std::unique_ptr<PackedMatrix> gate_up, down;
};

}  // namespace winnow::ops::testing
