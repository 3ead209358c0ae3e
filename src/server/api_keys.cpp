#include "server/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "base/error.h"

namespace winnow::server {
namespace {

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

std::string_view bearer_key(std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() < kScheme.size()) return {};
  if (!equals_ignoring_case(header.substr(0, kScheme.size()), kScheme)) return {};
  return trim(header.substr(kScheme.size()));
}

std::array<std::uint8_t, 32> sha256(std::string_view text) {
  std::array<std::uint8_t, 32> out{};
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), out.data(), &size, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::kInternal, "SHA-256 is not available");
  }
  return out;
}

bool is_below(std::string_view path, std::string_view root) {
  return path == root || (path.starts_with(root) && path[root.size()] == '/');
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (trim(key).empty()) throw Error(ErrorCode::kInvalidArgument, "an API key is empty");
    digests_.push_back(sha256(trim(key)));
  }
}

bool ApiKeys::accepts(std::string_view key) const {
  const Digest asked = sha256(key);
  unsigned int matches = 0;
  for (const Digest& known : digests_) {
    matches |= static_cast<unsigned int>(CRYPTO_memcmp(known.data(), asked.data(), 32) == 0);
  }
  return matches != 0;
}

bool ApiKeys::accepts(const HttpRequest& request) const {
  if (is_open()) return true;
  const bool is_bearer_good = accepts(bearer_key(request.header("authorization")));
  if (!is_below(request.path, "/v1/messages") && !is_below(request.path, "/v1/models")) {
    return is_bearer_good;
  }
  return accepts(trim(request.header("x-api-key"))) || is_bearer_good;
}

bool ApiKeys::guards(std::string_view path) {
  return is_below(path, "/v1") || is_below(path, "/v2") || is_below(path, "/inference");
}

std::string caller_of(const HttpRequest& request) {
  std::string_view key = bearer_key(request.header("authorization"));
  if (key.empty()) key = trim(request.header("x-api-key"));
  if (key.empty()) return {};
  const auto digest = sha256(key);
  return {digest.begin(), digest.end()};
}

std::vector<std::string> read_key_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Error(ErrorCode::kIo, fmt::format("--api-key-file {}: cannot be read", path));
  std::vector<std::string> keys;
  for (std::string line; std::getline(file, line);) {
    const std::string_view key = trim(line);
    if (!key.empty() && key.front() != '#') keys.emplace_back(key);
  }
  if (keys.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("--api-key-file {}: no key in it", path));
  }
  return keys;
}

}  // namespace winnow::server
