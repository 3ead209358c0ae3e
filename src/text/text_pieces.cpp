#include "text/text_pieces.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <future>
#include <system_error>

#include "text/token_cache.h"

namespace winnow {

namespace {

constexpr std::size_t kMinPiece = 2048;  // below this an entry of the cache is mostly overhead
constexpr std::size_t kMaxPiece = 8192;  // past this any place will do
// Starting a thread costs as much as encoding a few KiB.
constexpr std::size_t kMinThreadBytes = std::size_t{32} << 10;

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// One place in 16, by the eight bytes before it.
bool is_preferred(const char* place) {
  std::uint64_t before = 0;
  std::memcpy(&before, place - sizeof(before), sizeof(before));
  return (before * 0x9E3779B97F4A7C15U) >> 60 == 0;
}

}  // namespace

void cut_into_pieces(std::string_view text, std::vector<TextPiece>& pieces) {
  std::size_t begin = 0;
  for (std::size_t i = kMinPiece; i + kMinPiece <= text.size(); ++i) {
    if (!is_blank(text[i]) || !is_letter_or_digit(text[i - 1])) continue;
    if (i - begin < kMaxPiece && !is_preferred(text.data() + i)) continue;
    pieces.push_back({text.substr(begin, i - begin)});
    begin = i;
    i += kMinPiece - 1;
  }
  if (begin < text.size()) pieces.push_back({text.substr(begin)});
}

void encode_pieces(const std::vector<TextPiece>& pieces, const EncodePiece& encode,
                   const EncodeOptions& options, std::vector<TokenId>& ids) {
  TokenCache* const cache = options.cache;
  const auto is_cacheable = [cache](std::string_view text) {
    return cache != nullptr && text.size() >= TokenCache::kMinTextBytes;
  };
  std::vector<std::vector<TokenId>> made(pieces.size());
  std::vector<std::size_t> missing;
  std::size_t missing_bytes = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string_view text = pieces[i].text;
    if (pieces[i].token >= 0 ||
        (is_cacheable(text) && cache->find(text, options.cache_salt, made[i])))
      continue;
    missing.push_back(i);
    missing_bytes += text.size();
  }

  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t n = next++; n < missing.size(); n = next++) {
      const std::size_t i = missing[n];
      encode(pieces[i].text, made[i]);
      if (is_cacheable(pieces[i].text)) cache->insert(pieces[i].text, options.cache_salt, made[i]);
    }
  };
  {
    // Destroyed before what `work` refers to, also when it throws here: each waits for its thread.
    std::vector<std::future<void>> others;
    const std::size_t most = std::min<std::size_t>(static_cast<std::size_t>(options.num_threads),
                                                   missing_bytes / kMinThreadBytes);
    try {
      while (others.size() + 1 < most) others.push_back(std::async(std::launch::async, work));
    } catch (const std::system_error&) {
      // No more threads to be had: those there are do it all.
    }
    work();
    for (std::future<void>& other : others) other.get();
  }

  std::size_t num_ids = ids.size();
  for (const std::vector<TokenId>& part : made) num_ids += std::max<std::size_t>(part.size(), 1);
  ids.reserve(num_ids);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].token >= 0) {
      ids.push_back(pieces[i].token);
    } else {
      ids.insert(ids.end(), made[i].begin(), made[i].end());
    }
  }
}

}  // namespace winnow
