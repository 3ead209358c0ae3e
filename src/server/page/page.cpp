#include "server/page/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <string>
#include <string_view>

#include "base/assert.h"

namespace winnow::server {
namespace {

/// What stands between two tags of the page.
std::string_view between(std::string_view begin, std::string_view end) {
  const std::string_view page = kPageText;
  const std::size_t from = page.find(begin) + begin.size();
  const std::size_t to = page.find(end, from);
  WINNOW_ASSERT(to != std::string_view::npos, "the page has its style and its script", from);
  return page.substr(from, to - from);
}

/// 'sha256-…', which allows exactly that text.
std::string hash_source(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  const bool is_made =
      EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1;
  WINNOW_ASSERT(is_made, "SHA-256 is there", size);
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> base64{};
  EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(size));
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

}  // namespace

HttpResponse page_response() {
  static const std::string policy = fmt::format(
      "default-src 'none'; connect-src 'self'; img-src data:; style-src {}; script-src {}; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      hash_source(between("<style>", "</style>")),
      hash_source(between("<script type=\"module\">", "</script>")));
  return {.content_type = "text/html; charset=utf-8",
          .body = kPageText,
          .headers = {{"Content-Security-Policy", policy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace winnow::server
