#include "cache/prefix_index.h"

#include <algorithm>

#include "base/assert.h"

namespace winnow {

PrefixIndex::PrefixIndex(std::int32_t num_blocks, std::int32_t block_tokens)
    : block_tokens_(block_tokens),
      entries_(static_cast<std::size_t>(num_blocks)),
      tokens_(static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(block_tokens)) {}

std::optional<BlockId> PrefixIndex::find(const BlockHash& hash, const BlockHash& parent,
                                         std::span<const TokenId> tokens) const {
  const auto head = heads_.find(hash);
  if (head == heads_.end()) return std::nullopt;
  for (std::int32_t block = head->second; block >= 0; block = entry(BlockId{block}).next) {
    if (entry(BlockId{block}).parent == parent && std::ranges::equal(tokens_of(block), tokens)) {
      return BlockId{block};
    }
  }
  return std::nullopt;
}

void PrefixIndex::insert(BlockId block, const BlockHash& hash, const BlockHash& parent,
                         std::span<const TokenId> tokens) {
  Entry& added = entry(block);
  WINNOW_ASSERT(!added.is_present, "a block holds one prefix", block.value);
  WINNOW_ASSERT(static_cast<std::int32_t>(tokens.size()) == block_tokens_,
                "only full blocks are shared", tokens.size(), block_tokens_);
  const auto [head, is_new] = heads_.try_emplace(hash, block.value);
  added = {.hash = hash, .parent = parent, .is_present = true};
  if (!is_new) {  // second in the list: the oldest block stays the one that is found
    Entry& oldest = entry(BlockId{head->second});
    added.previous = head->second;
    added.next = oldest.next;
    if (oldest.next >= 0) entry(BlockId{oldest.next}).previous = block.value;
    oldest.next = block.value;
  }
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(block.value) *
                                                  static_cast<std::ptrdiff_t>(block_tokens_));
  ++size_;
}

void PrefixIndex::erase(BlockId block) {
  Entry& erased = entry(block);
  WINNOW_ASSERT(erased.is_present, "only what was inserted can be erased", block.value);
  if (erased.next >= 0) entry(BlockId{erased.next}).previous = erased.previous;
  if (erased.previous >= 0) {
    entry(BlockId{erased.previous}).next = erased.next;
  } else if (erased.next >= 0) {
    heads_[erased.hash] = erased.next;
  } else {
    heads_.erase(erased.hash);
  }
  erased = {};
  --size_;
}

std::int32_t PrefixIndex::count_reachable() const {
  std::int32_t count = 0;
  for (const auto& [hash, head] : heads_) {
    for (std::int32_t block = head; block >= 0; block = entry(BlockId{block}).next) ++count;
  }
  return count;
}

std::span<const TokenId> PrefixIndex::tokens_of(std::int32_t block) const {
  return std::span(tokens_).subspan(
      static_cast<std::size_t>(block) * static_cast<std::size_t>(block_tokens_),
      static_cast<std::size_t>(block_tokens_));
}

}  // namespace winnow
