// How a weight matrix is stored in a checkpoint. Source: spec of the published layouts.
#pragma once

#include <cstdint>

namespace winnow {

enum class QuantScheme : std::uint8_t {
  kF32,
  kBF16,
  kMxfp8,  // E4M3 values, one E8M0 scale per 32 along the input dimension
  kNvfp4,  // E2M1 codes, two a byte (low nibble first), one E4M3 scale per 16, one F32 per matrix
};

}  // namespace winnow
