// Which keys may use the API. Source: spec/serving.md 2.1.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"

namespace winnow::server {

/// Keeps SHA-256 digests only. Immutable, any thread.
class ApiKeys {
 public:
  ApiKeys() = default;
  /// Empty keys are refused with Error{kInvalidArgument}: they would let everybody in.
  explicit ApiKeys(const std::vector<std::string>& keys);

  bool is_open() const { return digests_.empty(); }
  /// Compares with every key in constant time, without stopping at a match.
  bool accepts(std::string_view key) const;
  /// `Authorization: Bearer KEY`, the scheme in any case; below /v1/messages and /v1/models, which
  /// Anthropic's clients use, `x-api-key` as well.
  bool accepts(const HttpRequest& request) const;

  /// Paths that need a key when one is set: below /v1, /v2 and /inference.
  static bool guards(std::string_view path);

 private:
  using Digest = std::array<std::uint8_t, 32>;
  std::vector<Digest> digests_;
};

/// Tells callers apart without keeping their keys: a digest of the key a request came with, whether
/// it was needed or not. Empty without one.
std::string caller_of(const HttpRequest& request);

/// One key a line; blank lines and lines that start with '#' are skipped. Throws Error{kIo}.
std::vector<std::string> read_key_file(const std::string& path);

}  // namespace winnow::server
