// Places in the rings of slots through which the warpgroups of a CTA hand blocks to each other.
#pragma once

#include <cstdint>

namespace winnow::cuda {

/// A place in a ring of `kStages` slots and the parity of its barriers there.
template <int kStages>
struct RingPlace {
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

}  // namespace winnow::cuda
