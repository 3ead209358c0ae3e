#include "text/token_cache.h"

#include <xxhash.h>

#include <random>

namespace winnow {

namespace {

// List node, hash table node and their pointers, and what the allocator rounds up.
constexpr std::int64_t kEntryBytes = 192;

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

TokenCache::TokenCache(std::int64_t max_bytes) : seed_(random_seed()) {
  stats_.max_bytes = max_bytes;
}

std::int64_t TokenCache::Entry::num_bytes() const {
  return static_cast<std::int64_t>(text.size() + salt.size() + ids.size() * sizeof(TokenId)) +
         kEntryBytes;
}

std::uint64_t TokenCache::hash_of(std::string_view text, std::string_view salt) const {
  const std::uint64_t seed =
      salt.empty() ? seed_ : XXH3_64bits_withSeed(salt.data(), salt.size(), seed_);
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

bool TokenCache::find(std::string_view text, std::string_view salt, std::vector<TokenId>& ids) {
  const std::uint64_t hash = hash_of(text, salt);
  const std::lock_guard lock(mutex_);
  stats_.query_bytes += static_cast<std::int64_t>(text.size());
  const auto found = by_hash_.find(hash);
  if (found == by_hash_.end() || found->second->text != text || found->second->salt != salt) {
    return false;
  }
  entries_.splice(entries_.begin(), entries_, found->second);
  const Entry& entry = *found->second;
  ids.insert(ids.end(), entry.ids.begin(), entry.ids.end());
  stats_.hit_bytes += static_cast<std::int64_t>(text.size());
  return true;
}

void TokenCache::insert(std::string_view text, std::string_view salt,
                        std::span<const TokenId> ids) {
  std::list<Entry> made;  // built outside the lock
  made.push_back(
      {hash_of(text, salt), std::string(text), std::string(salt), {ids.begin(), ids.end()}});
  const std::int64_t num_bytes = made.front().num_bytes();
  const std::lock_guard lock(mutex_);
  if (num_bytes > stats_.max_bytes || by_hash_.contains(made.front().hash)) return;
  while (stats_.used_bytes + num_bytes > stats_.max_bytes) drop_last();
  by_hash_.emplace(made.front().hash, made.begin());
  entries_.splice(entries_.begin(), made);
  stats_.used_bytes += num_bytes;
}

void TokenCache::drop_last() {
  stats_.used_bytes -= entries_.back().num_bytes();
  by_hash_.erase(entries_.back().hash);
  entries_.pop_back();
}

TokenCacheStats TokenCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace winnow
