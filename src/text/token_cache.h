// Token ids of stretches of text that were encoded before. A conversation comes back whole with
// every turn; what it said already is looked up here instead of being encoded again.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct TokenCacheStats {
  std::int64_t query_bytes = 0;  // of text looked up
  std::int64_t hit_bytes = 0;    // of text found
  std::int64_t used_bytes = 0;   // kept now
  std::int64_t max_bytes = 0;
};

/// Text to ids, least recently used first out. For one tokenizer, whose ids are a function of the
/// text alone. A salt keeps callers apart who must not learn from the time of an answer what others
/// have sent: what goes in with one is found with the same one only. Texts and salts are compared
/// on every hit, so a collision of hashes costs an encoding and never gives another text's ids. Any
/// thread.
class TokenCache {
 public:
  /// Shorter stretches cost as much to look up as to encode.
  static constexpr std::size_t kMinTextBytes = 64;

  /// `max_bytes` bounds texts, ids and what holds them together; 0 keeps nothing.
  explicit TokenCache(std::int64_t max_bytes);

  /// Appends the ids of `text`, or returns false.
  [[nodiscard]] bool find(std::string_view text, std::string_view salt, std::vector<TokenId>& ids);
  void insert(std::string_view text, std::string_view salt, std::span<const TokenId> ids);

  TokenCacheStats stats() const;

 private:
  struct Entry {
    std::uint64_t hash;
    std::string text;
    std::string salt;
    std::vector<TokenId> ids;
    std::int64_t num_bytes() const;
  };

  std::uint64_t hash_of(std::string_view text, std::string_view salt) const;
  void drop_last();

  const std::uint64_t seed_;  // of this process, so that colliding texts cannot be prepared
  mutable std::mutex mutex_;
  TokenCacheStats stats_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<std::uint64_t, std::list<Entry>::iterator> by_hash_;
};

}  // namespace winnow
