#include "server/thinking_seal.h"

#include <openssl/evp.h>

namespace winnow::server {
namespace {

constexpr std::string_view kPrefix = "winnow1:";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string seal_thinking(std::string_view thinking) {
  std::string base64(4 * ((thinking.size() + 2) / 3) + 1, '\0');  // and the NUL it ends with
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(base64.data()),
                                   bytes_of(thinking), static_cast<int>(thinking.size()));
  base64.resize(static_cast<std::size_t>(size));
  return std::string(kPrefix) + base64;
}

std::optional<std::string> open_seal(std::string_view seal) {
  if (!seal.starts_with(kPrefix)) return std::nullopt;
  seal.remove_prefix(kPrefix.size());
  if (seal.size() % 4 != 0 || seal.size() > (1U << 30)) return std::nullopt;
  std::string out(seal.size() / 4 * 3, '\0');
  if (seal.empty()) return out;
  const std::size_t padding = seal.size() - seal.find_last_not_of('=') - 1;
  if (padding > 2 || seal.find('=') < seal.size() - padding) return std::nullopt;
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes_of(seal),
                                   static_cast<int>(seal.size()));
  if (size < 0) return std::nullopt;
  // The decoder counts the padding's zero bytes as text.
  out.resize(static_cast<std::size_t>(size) - padding);
  return out;
}

}  // namespace winnow::server
