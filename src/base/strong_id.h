// Integer ids as distinct types, so that a slot cannot be passed for a block.
#pragma once

#include <compare>
#include <cstdint>

namespace winnow {

template <typename Tag, typename Int = std::int32_t>
struct StrongId {
  Int value = -1;

  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

using BlockId = StrongId<struct BlockTag>;                      // row of the KV pool
using SequenceId = StrongId<struct SequenceTag, std::int64_t>;  // one choice of one request

using TokenId = std::int32_t;  // index into the vocabulary; arithmetic is common, so plain

}  // namespace winnow
