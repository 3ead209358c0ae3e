// The blocks of one sequence, in the order of its tokens, and the hashes that name them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_pool.h"

namespace winnow {

/// The longest known prefix of a sequence: found, not yet taken.
struct PrefixMatch {
  std::vector<BlockId> blocks;
  std::int32_t num_free = 0;  // of them, in the free queue: taking them shrinks it
};

/// Append-only while the sequence runs. Owned by the engine thread; release() before destruction.
class BlockTable {
 public:
  BlockTable() = default;

  std::span<const BlockId> blocks() const { return blocks_; }
  std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks_.size()); }

  /// Hashes follow from the scope; another scope than before starts the chain anew.
  void set_scope(BlockHasher& hasher, const PrefixScope& scope);

  /// Cached full blocks at the start of `tokens`, never all of the tokens: the last one has to be
  /// computed for its logits. The table is empty and its scope set.
  void match_prefix(const BlockPool& pool, BlockHasher& hasher, std::span<const TokenId> tokens,
                    PrefixMatch& match);
  /// Takes a match found since the pool last changed.
  void adopt(BlockPool& pool, const PrefixMatch& match);

  /// Blocks to allocate before positions [0, num_tokens) are covered.
  std::int32_t num_missing(std::int32_t num_tokens, std::int32_t block_tokens) const;
  /// Covers positions [0, num_tokens); false, and nothing changed, when too few blocks are free.
  [[nodiscard]] bool grow(BlockPool& pool, std::int32_t num_tokens);

  /// Makes the full blocks among the first `num_computed` tokens findable.
  void publish(BlockPool& pool, BlockHasher& hasher, std::span<const TokenId> tokens,
               std::int32_t num_computed);

  /// Shares the first `num_full` blocks of `other`, with their names. This table is empty.
  void share(BlockPool& pool, const BlockTable& other, std::int32_t num_full);

  /// Nobody else may find what these blocks hold, now or later: their content is in doubt.
  void forget(BlockPool& pool);
  void stop_publishing() { may_publish_ = false; }

  void release(BlockPool& pool);

 private:
  void extend_hashes(BlockHasher& hasher, std::span<const TokenId> tokens, std::int32_t num_full,
                     std::int32_t block_tokens);
  /// Parent of block i in the chain.
  const BlockHash& parent(std::int32_t i) const {
    return i == 0 ? root_ : hashes_[static_cast<std::size_t>(i) - 1];
  }

  std::vector<BlockId> blocks_;
  std::vector<BlockHash> hashes_;  // of full blocks, as far as computed
  PrefixScope scope_;
  BlockHash root_;
  bool has_scope_ = false;
  bool may_publish_ = true;
  std::int32_t num_published_ = 0;
};

}  // namespace winnow
