#include "cache/block_hash.h"

#define XXH_STATIC_LINKING_ONLY  // XXH3_generateSecret is declared only then before 0.8.2
#include <xxhash.h>

#include "base/assert.h"

namespace winnow {
namespace {

constexpr std::string_view kPublicSecret = "winnow prefix cache";

}  // namespace

BlockHasher::BlockHasher(std::string_view secret) : key_(XXH3_SECRET_DEFAULT_SIZE) {
  if (secret.empty()) secret = kPublicSecret;
  const XXH_errorcode code =
      XXH3_generateSecret(key_.data(), key_.size(), secret.data(), secret.size());
  WINNOW_ASSERT(code == XXH_OK, "a 192-byte secret can be derived from any string");
}

BlockHash BlockHasher::root(const PrefixScope& scope) {
  message_.clear();
  append(&scope.cache_identity, sizeof(scope.cache_identity));
  append(&scope.adapter, sizeof(scope.adapter));
  append(scope.salt.data(), scope.salt.size());
  return finish();
}

BlockHash BlockHasher::next(const BlockHash& parent, std::span<const TokenId> tokens) {
  message_.clear();
  append(&parent.low, sizeof(parent.low));
  append(&parent.high, sizeof(parent.high));
  append(tokens.data(), tokens.size_bytes());
  return finish();
}

BlockHash BlockHasher::finish() {
  const XXH128_hash_t hash =
      XXH3_128bits_withSecret(message_.data(), message_.size(), key_.data(), key_.size());
  return {.low = hash.low64, .high = hash.high64};
}

void BlockHasher::append(const void* data, std::size_t num_bytes) {
  const auto* bytes = static_cast<const std::byte*>(data);
  message_.insert(message_.end(), bytes, bytes + num_bytes);
}

}  // namespace winnow
