#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>
#include <vector>

#include "cache/block_table.h"

namespace winnow {
namespace {

constexpr std::int32_t kBlockTokens = 4;

std::vector<TokenId> tokens_of(std::uint64_t seed, std::size_t length) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> tokens(length);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 100);
  return tokens;
}

/// A pool, a hasher and the usual life of a sequence.
struct Cache {
  explicit Cache(std::int32_t num_blocks) : pool(num_blocks, kBlockTokens), hasher("") {}

  /// Finds, computes and publishes all of `tokens`; returns how many were found.
  std::int32_t run(BlockTable& table, std::span<const TokenId> tokens, std::string salt = {}) {
    PrefixMatch match;
    table.set_scope(hasher, {.salt = std::move(salt)});
    table.match_prefix(pool, hasher, tokens, match);
    table.adopt(pool, match);
    EXPECT_TRUE(table.grow(pool, static_cast<std::int32_t>(tokens.size())));
    table.publish(pool, hasher, tokens, static_cast<std::int32_t>(tokens.size()));
    return static_cast<std::int32_t>(match.blocks.size()) * kBlockTokens;
  }

  BlockPool pool;
  BlockHasher hasher;
};

TEST(BlockPool, BlockZeroIsOneLikeTheOthers) {  // cases.md B4
  BlockPool pool(1, kBlockTokens);
  const auto block = pool.allocate();
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->value, 0);
  EXPECT_FALSE(pool.allocate().has_value());
  pool.release(*block);
  EXPECT_EQ(pool.allocate(), block);
}

TEST(BlockPool, HandsOutEveryBlockOnce) {
  BlockPool pool(100, kBlockTokens);
  std::set<BlockId> seen;
  while (const auto block = pool.allocate()) seen.insert(*block);
  EXPECT_EQ(seen.size(), 100U);
  for (const BlockId block : seen) pool.release(block);
  pool.check_integrity(std::vector<std::int32_t>(100, 0));
}

TEST(BlockPool, ReusesWhatHoldsNothingFirstAndThenTheLeastRecentlyUsed) {
  Cache cache(8);
  BlockTable a, b;
  cache.run(a, tokens_of(1, 13));  // 3 full blocks and a partial one
  cache.run(b, tokens_of(2, 8));   // 2 full blocks
  const std::vector<BlockId> of_a(a.blocks().begin(), a.blocks().end());
  const std::vector<BlockId> of_b(b.blocks().begin(), b.blocks().end());
  a.release(cache.pool);
  b.release(cache.pool);
  // The partial block, then two never used; then a from its tail, then b from its tail.
  std::vector<BlockId> order;
  while (const auto block = cache.pool.allocate()) order.push_back(*block);
  ASSERT_EQ(order.size(), 8U);
  EXPECT_EQ(order[0], of_a[3]);
  EXPECT_EQ((std::vector<BlockId>(order.begin() + 3, order.end())),
            (std::vector<BlockId>{of_a[2], of_a[1], of_a[0], of_b[1], of_b[0]}));
  EXPECT_EQ(cache.pool.num_published(), 0);
}

TEST(BlockTable, SharesOnlyFullBlocksAndNeverTheLastToken) {
  Cache cache(64);
  const std::vector<TokenId> tokens = tokens_of(3, 40);
  for (std::size_t length = 1; length <= 40; ++length) {
    const std::span<const TokenId> prompt = std::span(tokens).first(length);
    Cache fresh(64);
    BlockTable first, again, longer;
    EXPECT_EQ(fresh.run(first, prompt), 0);
    EXPECT_EQ(fresh.run(again, prompt), static_cast<std::int32_t>((length - 1) / 4 * 4));
    std::vector<TokenId> more(prompt.begin(), prompt.end());
    more.push_back(7);
    EXPECT_EQ(fresh.run(longer, more), static_cast<std::int32_t>(length / 4 * 4));
    // Shared blocks are the same rows, the rest are its own.
    for (std::size_t i = 0; i < again.blocks().size(); ++i) {
      EXPECT_EQ(again.blocks()[i] == first.blocks()[i], i < (length - 1) / 4);
    }
    for (BlockTable* table : {&first, &again, &longer}) table->release(fresh.pool);
    fresh.pool.check_integrity(std::vector<std::int32_t>(64, 0));
  }
}

TEST(BlockTable, FindsNothingAcrossScopesOrAfterADifferentBeginning) {
  Cache cache(64);
  std::vector<TokenId> tokens = tokens_of(4, 20);
  BlockTable a, b, c, d;
  cache.run(a, tokens);
  EXPECT_EQ(cache.run(b, tokens, "salt"), 0);
  EXPECT_EQ(cache.run(c, tokens, "salt"), 16);
  tokens[0] ^= 1;  // all later blocks hold the same tokens, after another beginning
  EXPECT_EQ(cache.run(d, tokens), 0);
  for (BlockTable* table : {&a, &b, &c, &d}) table->release(cache.pool);
}

TEST(BlockTable, DuplicatesOutliveEachOther) {
  Cache cache(16);
  const std::vector<TokenId> tokens = tokens_of(5, 9);
  BlockTable a, b;
  // Both compute the same prompt at the same time: neither finds the other's.
  for (BlockTable* table : {&a, &b}) {
    table->set_scope(cache.hasher, {});
    ASSERT_TRUE(table->grow(cache.pool, 9));
  }
  for (BlockTable* table : {&a, &b}) table->publish(cache.pool, cache.hasher, tokens, 9);
  EXPECT_EQ(cache.pool.num_published(), 4);
  a.forget(cache.pool);
  a.release(cache.pool);
  BlockTable c;
  EXPECT_EQ(cache.run(c, tokens), 8);
  EXPECT_EQ(c.blocks()[0], b.blocks()[0]);
  b.release(cache.pool);
  c.release(cache.pool);
  cache.pool.check_integrity(std::vector<std::int32_t>(16, 0));
}

TEST(BlockTable, GrowsAllOrNothing) {
  Cache cache(4);
  BlockTable table;
  EXPECT_FALSE(table.grow(cache.pool, 17));
  EXPECT_EQ(table.num_blocks(), 0);
  EXPECT_TRUE(table.grow(cache.pool, 16));
  EXPECT_EQ(cache.pool.num_free(), 0);
  EXPECT_TRUE(table.grow(cache.pool, 16));
  table.release(cache.pool);
}

TEST(BlockTable, ForgottenBlocksAreNotFound) {
  Cache cache(16);
  const std::vector<TokenId> tokens = tokens_of(6, 20);
  BlockTable a, b;
  cache.run(a, tokens);
  cache.run(b, tokens);  // holds some of a's blocks
  a.forget(cache.pool);
  a.release(cache.pool);
  b.release(cache.pool);
  BlockTable c;
  EXPECT_EQ(cache.run(c, tokens), 0);
  c.release(cache.pool);
}

TEST(BlockHasher, DependsOnSecretScopeParentAndTokens) {
  BlockHasher hasher("");
  BlockHasher same("");
  BlockHasher keyed("a secret");
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const std::vector<TokenId> other = {1, 2, 3, 5};
  const BlockHash root = hasher.root({.cache_identity = 1});
  EXPECT_EQ(root, same.root({.cache_identity = 1}));
  EXPECT_NE(root, keyed.root({.cache_identity = 1}));
  EXPECT_NE(root, hasher.root({.cache_identity = 2}));
  EXPECT_NE(root, hasher.root({.cache_identity = 1, .adapter = 1}));
  EXPECT_NE(root, hasher.root({.cache_identity = 1, .salt = "x"}));
  const BlockHash next = hasher.next(root, tokens);
  EXPECT_EQ(next, same.next(root, tokens));
  EXPECT_NE(next, hasher.next(next, tokens));
  EXPECT_NE(next, hasher.next(root, other));
  EXPECT_NE(next, keyed.next(root, tokens));
}

// A colliding hash must not hand out another prefix's block.
TEST(PrefixIndex, ComparesTokensAndParent) {
  PrefixIndex index(4, 2);
  const BlockHash hash{.low = 1, .high = 2};
  const BlockHash parent{.low = 3, .high = 4};
  const std::vector<TokenId> tokens = {5, 6};
  index.insert(BlockId{0}, hash, parent, tokens);
  EXPECT_EQ(index.find(hash, parent, tokens), BlockId{0});
  EXPECT_EQ(index.find(hash, parent, std::vector<TokenId>{5, 7}), std::nullopt);
  EXPECT_EQ(index.find(hash, hash, tokens), std::nullopt);
  const std::vector<TokenId> collision = {8, 9};
  index.insert(BlockId{3}, hash, parent, collision);
  EXPECT_EQ(index.find(hash, parent, collision), BlockId{3});
  index.erase(BlockId{0});
  EXPECT_EQ(index.find(hash, parent, tokens), std::nullopt);
  EXPECT_EQ(index.find(hash, parent, collision), BlockId{3});
  EXPECT_EQ(index.count_reachable(), 1);
}

TEST(BlockPool, SurvivesRandomUse) {
  std::mt19937_64 random(7);
  for (const std::int32_t num_blocks : {1, 2, 7, 40}) {
    Cache cache(num_blocks);
    std::deque<BlockTable> tables;
    std::deque<std::vector<TokenId>> prompts;
    for (int round = 0; round < 20000; ++round) {
      if (random() % 2 == 0 || tables.empty()) {
        std::vector<TokenId> tokens = tokens_of(random() % 6, 1 + random() % 30);
        BlockTable table;
        PrefixMatch match;
        table.set_scope(cache.hasher, {});
        table.match_prefix(cache.pool, cache.hasher, tokens, match);
        table.adopt(cache.pool, match);
        const auto size = static_cast<std::int32_t>(tokens.size());
        if (table.grow(cache.pool, size)) {
          const auto computed = static_cast<std::int32_t>(random() % (tokens.size() + 1));
          table.publish(cache.pool, cache.hasher, tokens,
                        std::max(computed, static_cast<std::int32_t>(match.blocks.size()) * 4));
          tables.push_back(std::move(table));
        } else {
          table.release(cache.pool);
        }
      } else {
        std::swap(tables.front(), tables[random() % tables.size()]);
        if (random() % 10 == 0) tables.front().forget(cache.pool);
        tables.front().release(cache.pool);
        tables.pop_front();
      }
      if (random() % 500 == 0) cache.pool.forget_all();
      if (round % 50 != 0) continue;
      std::vector<std::int32_t> expected(static_cast<std::size_t>(num_blocks), 0);
      for (const BlockTable& table : tables) {
        for (const BlockId block : table.blocks())
          ++expected[static_cast<std::size_t>(block.value)];
      }
      cache.pool.check_integrity(expected);
    }
    while (!tables.empty()) {
      tables.front().release(cache.pool);
      tables.pop_front();
    }
    cache.pool.check_integrity(std::vector<std::int32_t>(static_cast<std::size_t>(num_blocks), 0));
  }
}

}  // namespace
}  // namespace winnow
