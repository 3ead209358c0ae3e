#include "cache/block_pool.h"

#include "base/assert.h"

namespace winnow {

BlockPool::BlockPool(std::int32_t num_blocks, std::int32_t block_tokens)
    : block_tokens_(block_tokens),
      references_(static_cast<std::size_t>(num_blocks), 0),
      free_(num_blocks),
      index_(num_blocks, block_tokens) {
  WINNOW_ASSERT(num_blocks >= 1 && block_tokens >= 1, "a pool has blocks", num_blocks,
                block_tokens);
  for (std::int32_t block = 0; block < num_blocks; ++block) free_.push_back(BlockId{block});
}

std::int32_t BlockPool::references(BlockId block) const {
  WINNOW_ASSERT(block.value >= 0 && block.value < num_blocks(), "block ids are rows of the pool",
                block.value, num_blocks());
  return references_[static_cast<std::size_t>(block.value)];
}

std::optional<BlockId> BlockPool::allocate() {
  if (free_.size() == 0) return std::nullopt;
  const BlockId block = free_.front();
  free_.remove(block);
  if (index_.contains(block)) index_.erase(block);
  references_[static_cast<std::size_t>(block.value)] = 1;
  return block;
}

void BlockPool::retain(BlockId block) {
  if (references(block) == 0) free_.remove(block);
  ++references_[static_cast<std::size_t>(block.value)];
}

void BlockPool::release(BlockId block) {
  WINNOW_ASSERT(references(block) > 0, "a block is released once per use", block.value);
  if (--references_[static_cast<std::size_t>(block.value)] > 0) return;
  if (index_.contains(block)) {
    free_.push_back(block);
  } else {
    free_.push_front(block);
  }
}

void BlockPool::publish(BlockId block, const BlockHash& hash, const BlockHash& parent,
                        std::span<const TokenId> tokens) {
  WINNOW_ASSERT(references(block) > 0, "only a block in use is published", block.value);
  if (!index_.contains(block)) index_.insert(block, hash, parent, tokens);
}

void BlockPool::forget(BlockId block) {
  if (!index_.contains(block)) return;
  index_.erase(block);
  if (!is_free(block)) return;
  free_.remove(block);  // it holds nothing of use now: the next to be handed out
  free_.push_front(block);
}

void BlockPool::forget_all() {
  for (std::int32_t block = 0; block < num_blocks(); ++block) forget(BlockId{block});
}

void BlockPool::check_integrity(std::span<const std::int32_t> expected) const {
  WINNOW_ASSERT(expected.size() == references_.size(), "one count per block", expected.size());
  std::int32_t num_unused = 0;
  std::int32_t num_present = 0;
  for (std::int32_t block = 0; block < num_blocks(); ++block) {
    const std::int32_t count = references(BlockId{block});
    WINNOW_ASSERT(count == expected[static_cast<std::size_t>(block)],
                  "every reference belongs to a sequence", block, count,
                  expected[static_cast<std::size_t>(block)]);
    WINNOW_ASSERT(free_.contains(BlockId{block}) == (count == 0),
                  "a block is free exactly when nobody uses it", block, count);
    num_unused += count == 0 ? 1 : 0;
    num_present += index_.contains(BlockId{block}) ? 1 : 0;
  }
  WINNOW_ASSERT(free_.size() == num_unused, "the free queue's size", free_.size(), num_unused);
  std::int32_t num_linked = 0;
  if (num_unused > 0) {
    for (BlockId block = free_.front(); block.value >= 0 && num_linked <= num_unused;
         block = free_.after(block)) {
      ++num_linked;
    }
  }
  WINNOW_ASSERT(num_linked == num_unused, "the free queue's links", num_linked, num_unused);
  WINNOW_ASSERT(index_.size() == num_present, "the index's size", index_.size(), num_present);
  WINNOW_ASSERT(index_.count_reachable() == num_present, "the index's lists",
                index_.count_reachable(), num_present);
}

}  // namespace winnow
