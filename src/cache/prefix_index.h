// From the hash of a prefix to the blocks that hold its last block of tokens. Tokens are compared
// on every hit, so that a collision of hashes costs a recompute and never another user's text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/block_hash.h"

namespace winnow {

/// Several blocks may hold the same prefix (two requests computed it at the same time); each stays
/// findable until it is forgotten.
class PrefixIndex {
 public:
  PrefixIndex(std::int32_t num_blocks, std::int32_t block_tokens);

  /// A block whose content is `tokens` after the prefix `parent`.
  [[nodiscard]] std::optional<BlockId> find(const BlockHash& hash, const BlockHash& parent,
                                            std::span<const TokenId> tokens) const;
  bool contains(BlockId block) const { return entry(block).is_present; }
  void insert(BlockId block, const BlockHash& hash, const BlockHash& parent,
              std::span<const TokenId> tokens);
  void erase(BlockId block);

  std::int32_t size() const { return size_; }
  /// Blocks reachable through the map; equals size() unless a list is broken.
  std::int32_t count_reachable() const;

 private:
  struct Hasher {
    std::size_t operator()(const BlockHash& hash) const { return hash.low; }
  };
  struct Entry {
    BlockHash hash, parent;
    std::int32_t previous = -1, next = -1;  // blocks of the same hash
    bool is_present = false;
  };

  Entry& entry(BlockId block) { return entries_[static_cast<std::size_t>(block.value)]; }
  const Entry& entry(BlockId block) const {
    return entries_[static_cast<std::size_t>(block.value)];
  }
  std::span<const TokenId> tokens_of(std::int32_t block) const;

  std::int32_t block_tokens_ = 0;
  std::int32_t size_ = 0;
  std::vector<Entry> entries_;
  std::vector<TokenId> tokens_;  // [num_blocks][block_tokens], of present entries
  std::unordered_map<BlockHash, std::int32_t, Hasher> heads_;
};

}  // namespace winnow
