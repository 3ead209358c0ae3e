// A weight matrix of any scheme with random contents, and its values as doubles.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/linear/linear.h"
#include "ops/testing/random_inputs.h"

namespace winnow::ops::testing {

/// Owns what source() points to. Values are about normal with deviation 1 / sqrt(cols); scales vary
/// by a few powers of two.
class RandomMatrix {
 public:
  RandomMatrix(QuantScheme scheme, std::int64_t rows, std::int64_t cols, RandomInputs& random);

  MatrixSource source() const;
  /// What element [row][col] stands for, scales included.
  double value(std::int64_t row, std::int64_t col) const;

 private:
  QuantScheme scheme_;
  std::int64_t rows_;
  std::int64_t cols_;
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::uint8_t> scales_;
  float matrix_scale_ = 1.0F;
};

inline constexpr QuantScheme kAllSchemes[] = {QuantScheme::kF32, QuantScheme::kBF16,
                                              QuantScheme::kMxfp8, QuantScheme::kNvfp4};

}  // namespace winnow::ops::testing
