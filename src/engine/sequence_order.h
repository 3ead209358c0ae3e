// Who goes before whom: by priority, where the policy asks for one, then by arrival.
#pragma once

#include <cstdint>

#include "engine/sequence.h"

namespace winnow {

/// Arrival order of two sequences of one priority.
inline bool arrived_before(const Sequence& a, const Sequence& b) {
  return a.request->id != b.request->id ? a.request->id < b.request->id : a.choice < b.choice;
}

struct SequenceOrder {
  bool use_priority = false;

  /// Lower goes first.
  std::int32_t priority_of(const Sequence& sequence) const {
    return use_priority ? sequence.request->request.priority : 0;
  }
  bool is_before(const Sequence& a, const Sequence& b) const {
    const std::int32_t own = priority_of(a);
    const std::int32_t theirs = priority_of(b);
    return own != theirs ? own < theirs : arrived_before(a, b);
  }
};

}  // namespace winnow
