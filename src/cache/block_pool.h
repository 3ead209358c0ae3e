// Who uses which row of the KV pool. A block is free when nobody refers to it; a free block keeps
// what it holds, and stays findable, until it is handed out again. It never touches the rows.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/free_queue.h"
#include "cache/prefix_index.h"

namespace winnow {

/// Owned by the engine thread.
///
/// Invariants (checked by check_integrity): a block is in the free queue exactly when its reference
/// count is 0; every block in the index is full and computed.
class BlockPool {
 public:
  /// Every id of [0, num_blocks) is a block; 0 is one like the others.
  BlockPool(std::int32_t num_blocks, std::int32_t block_tokens);

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(references_.size()); }
  std::int32_t block_tokens() const { return block_tokens_; }
  std::int32_t num_free() const { return free_.size(); }
  std::int32_t num_published() const { return index_.size(); }
  bool is_free(BlockId block) const { return references(block) == 0; }
  std::int32_t references(BlockId block) const;

  /// A block with one reference; the least recently used prefix is forgotten for it, when no block
  /// without one is left. None when all blocks are in use.
  [[nodiscard]] std::optional<BlockId> allocate();
  /// One more user; a free block leaves the free queue with its content.
  void retain(BlockId block);
  /// One user less. The last one's release puts the block at the end of the free queue if it is
  /// published, else at its front. Release a sequence's blocks last to first, so that the tail of
  /// a prefix is evicted before its head.
  void release(BlockId block);

  /// Makes a full, computed block findable. No effect when it already is.
  void publish(BlockId block, const BlockHash& hash, const BlockHash& parent,
               std::span<const TokenId> tokens);
  bool is_published(BlockId block) const { return index_.contains(block); }
  /// No reference is taken.
  [[nodiscard]] std::optional<BlockId> find(const BlockHash& hash, const BlockHash& parent,
                                            std::span<const TokenId> tokens) const {
    return index_.find(hash, parent, tokens);
  }
  /// The block's content is not to be found any more; who uses it keeps it.
  void forget(BlockId block);
  void forget_all();

  /// `expected[b]` is the number of users the caller knows of block b. Asserts all invariants.
  void check_integrity(std::span<const std::int32_t> expected) const;

 private:
  std::int32_t block_tokens_ = 0;
  std::vector<std::int32_t> references_;
  FreeQueue free_;
  PrefixIndex index_;
};

}  // namespace winnow
