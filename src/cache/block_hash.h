// Names of cached prefixes: a chain of keyed 128-bit hashes, one per full block.
// hash(block) = XXH3-128(secret; hash(parent), tokens of the block); the chain's root covers what
// cached values depend on besides tokens. Source: spec/serving.md 3.3.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct BlockHash {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

/// What separates two prefixes of equal tokens. A new reason (an adapter, an image) is a new member
/// here and one more line in BlockHasher::root().
struct PrefixScope {
  std::uint64_t cache_identity = 0;  // dtypes, dequantisation mode, weights
  std::uint64_t adapter = 0;         // id and version of a LoRA adapter; 0: the base model
  std::string salt{};                // of the request

  friend bool operator==(const PrefixScope&, const PrefixScope&) = default;
};

/// Not thread-safe: owned by the engine thread.
class BlockHasher {
 public:
  /// With a secret, hashes cannot be predicted from outside; without one they are the same in
  /// every process.
  explicit BlockHasher(std::string_view secret);

  BlockHash root(const PrefixScope& scope);
  /// `tokens` are those of one full block.
  BlockHash next(const BlockHash& parent, std::span<const TokenId> tokens);

 private:
  BlockHash finish();
  void append(const void* data, std::size_t num_bytes);

  std::vector<std::byte> key_;      // XXH3's long secret, derived from the short one
  std::vector<std::byte> message_;  // scratch
};

}  // namespace winnow
