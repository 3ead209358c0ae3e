#include "cache/block_table.h"

#include <algorithm>

#include "base/assert.h"

namespace winnow {
namespace {

std::int32_t blocks_for(std::int32_t num_tokens, std::int32_t block_tokens) {
  return num_tokens / block_tokens + (num_tokens % block_tokens != 0 ? 1 : 0);
}

std::span<const TokenId> block_of(std::span<const TokenId> tokens, std::int32_t i,
                                  std::int32_t block_tokens) {
  return tokens.subspan(static_cast<std::size_t>(i) * static_cast<std::size_t>(block_tokens),
                        static_cast<std::size_t>(block_tokens));
}

}  // namespace

void BlockTable::set_scope(BlockHasher& hasher, const PrefixScope& scope) {
  if (has_scope_ && scope == scope_) return;
  scope_ = scope;
  root_ = hasher.root(scope);
  has_scope_ = true;
  hashes_.clear();
}

void BlockTable::match_prefix(const BlockPool& pool, BlockHasher& hasher,
                              std::span<const TokenId> tokens, PrefixMatch& match) {
  WINNOW_ASSERT(blocks_.empty() && has_scope_, "prefixes are looked up before blocks are taken");
  match.blocks.clear();
  match.num_free = 0;
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  const std::int32_t num_full = num_tokens > 0 ? (num_tokens - 1) / pool.block_tokens() : 0;
  for (std::int32_t i = 0; i < num_full; ++i) {
    extend_hashes(hasher, tokens, i + 1, pool.block_tokens());
    const auto found = pool.find(hashes_[static_cast<std::size_t>(i)], parent(i),
                                 block_of(tokens, i, pool.block_tokens()));
    if (!found) return;
    match.blocks.push_back(*found);
    match.num_free += pool.is_free(*found) ? 1 : 0;
  }
}

void BlockTable::adopt(BlockPool& pool, const PrefixMatch& match) {
  WINNOW_ASSERT(blocks_.empty(), "a match starts the table");
  for (const BlockId block : match.blocks) pool.retain(block);
  blocks_ = match.blocks;
  num_published_ = num_blocks();
}

std::int32_t BlockTable::num_missing(std::int32_t num_tokens, std::int32_t block_tokens) const {
  const std::int32_t needed = blocks_for(num_tokens, block_tokens);
  return needed > num_blocks() ? needed - num_blocks() : 0;
}

bool BlockTable::grow(BlockPool& pool, std::int32_t num_tokens) {
  const std::int32_t missing = num_missing(num_tokens, pool.block_tokens());
  if (missing > pool.num_free()) return false;
  for (std::int32_t i = 0; i < missing; ++i) blocks_.push_back(*pool.allocate());
  return true;
}

void BlockTable::publish(BlockPool& pool, BlockHasher& hasher, std::span<const TokenId> tokens,
                         std::int32_t num_computed) {
  const std::int32_t num_full = num_computed / pool.block_tokens();
  if (!may_publish_ || num_full <= num_published_) return;
  WINNOW_ASSERT(num_full <= num_blocks() && has_scope_, "computed tokens are in blocks", num_full,
                num_blocks());
  extend_hashes(hasher, tokens, num_full, pool.block_tokens());
  for (std::int32_t i = num_published_; i < num_full; ++i) {
    const auto at = static_cast<std::size_t>(i);
    pool.publish(blocks_[at], hashes_[at], parent(i), block_of(tokens, i, pool.block_tokens()));
  }
  num_published_ = num_full;
}

void BlockTable::share(BlockPool& pool, const BlockTable& other, std::int32_t num_full) {
  WINNOW_ASSERT(blocks_.empty() && num_full <= other.num_blocks(), "sharing starts a table",
                num_full, other.num_blocks());
  scope_ = other.scope_;
  root_ = other.root_;
  has_scope_ = other.has_scope_;
  may_publish_ = other.may_publish_;
  const auto shared = static_cast<std::ptrdiff_t>(num_full);
  blocks_.assign(other.blocks_.begin(), other.blocks_.begin() + shared);
  const auto known = std::min(shared, static_cast<std::ptrdiff_t>(other.hashes_.size()));
  hashes_.assign(other.hashes_.begin(), other.hashes_.begin() + known);
  num_published_ = std::min(num_full, other.num_published_);
  for (const BlockId block : blocks_) pool.retain(block);
}

void BlockTable::forget(BlockPool& pool) {
  may_publish_ = false;
  for (const BlockId block : blocks_) pool.forget(block);
}

void BlockTable::release(BlockPool& pool) {
  while (!blocks_.empty()) {
    pool.release(blocks_.back());
    blocks_.pop_back();
  }
  num_published_ = 0;
  may_publish_ = true;  // what is computed from here on is new
}

void BlockTable::extend_hashes(BlockHasher& hasher, std::span<const TokenId> tokens,
                               std::int32_t num_full, std::int32_t block_tokens) {
  for (auto i = static_cast<std::int32_t>(hashes_.size()); i < num_full; ++i) {
    hashes_.push_back(hasher.next(parent(i), block_of(tokens, i, block_tokens)));
  }
}

}  // namespace winnow
