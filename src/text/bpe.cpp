#include "text/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <queue>

namespace winnow {

namespace {

// One cache line per word: 22 key bytes and 8 tokens cover all but a few words of running text.
// 32K entries are 2 MiB, which stays in a core's L2.
constexpr std::size_t kMaxCachedBytes = 22;
constexpr std::size_t kMaxCachedTokens = 8;
constexpr std::size_t kCacheEntries = std::size_t{1} << 15;
constexpr std::size_t kShortWord = 24;  // below this scans beat the heap

struct alignas(64) CacheEntry {
  std::array<char, kMaxCachedBytes> key;
  std::uint8_t num_bytes = 0;  // 0: empty
  std::uint8_t num_tokens = 0;
  std::array<TokenId, kMaxCachedTokens> ids;
  std::array<std::uint8_t, kMaxCachedTokens> token_bytes;
};
static_assert(sizeof(CacheEntry) == 64);

std::uint64_t hash_word(std::string_view word) {
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15U;
  std::uint64_t hash = word.size() * kMultiplier;
  while (word.size() >= 8) {
    std::uint64_t part = 0;
    std::memcpy(&part, word.data(), 8);
    hash = std::rotl((hash ^ part) * kMultiplier, 29);
    word.remove_prefix(8);
  }
  std::uint64_t part = 0;
  std::memcpy(&part, word.data(), word.size());
  hash = (hash ^ part) * kMultiplier;
  return hash ^ (hash >> 32);
}

struct HeapItem {
  std::uint32_t rank;
  std::int32_t position;  // of the left symbol
  TokenId left;           // the pair as it was when pushed: a mismatch means the item is stale
  TokenId right;
  TokenId result;
};

struct LaterItem {
  bool operator()(const HeapItem& a, const HeapItem& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }
};

struct Link {
  std::int32_t previous;
  std::int32_t next;
};

}  // namespace

struct BpeScratch::State {
  std::vector<CacheEntry> cache = std::vector<CacheEntry>(kCacheEntries);
  std::vector<BpeToken> symbols;
  std::vector<Link> links;
  std::vector<HeapItem> heap;
};

BpeScratch::BpeScratch() : state_(std::make_unique<State>()) {}
BpeScratch::~BpeScratch() = default;

Bpe::Bpe(const BpeConfig& config) : unk_id_(config.unk_id), fuse_unk_(config.fuse_unk) {
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (const auto& [bytes, id] : config.vocab) {
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
  }
  if (config.ignore_merges) {
    whole_words_.reserve(config.vocab.size());
    for (const auto& [bytes, id] : config.vocab) whole_words_.emplace(bytes, id);
  }
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * config.merges.size(), 16));
  merges_.resize(slots);
  merge_shift_ = 64 - std::countr_zero(slots);
  std::uint32_t rank = 0;
  for (const BpeConfig::Merge& merge : config.merges) {
    const std::uint64_t pair = (std::uint64_t{static_cast<std::uint32_t>(merge.left)} << 32) |
                               static_cast<std::uint32_t>(merge.right);
    add_merge(pair, rank++, merge.result);
  }
}

void Bpe::add_merge(std::uint64_t pair, std::uint32_t rank, TokenId result) {
  const std::size_t mask = merges_.size() - 1;
  std::size_t slot = (pair * 0x9E3779B97F4A7C15U) >> merge_shift_;
  while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & mask;
  merges_[slot] = {pair, rank, result};
}

const Bpe::MergeSlot* Bpe::find_merge(TokenId left, TokenId right) const {
  const std::uint64_t pair =
      (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
  const std::size_t mask = merges_.size() - 1;
  std::size_t slot = (pair * 0x9E3779B97F4A7C15U) >> merge_shift_;
  while (merges_[slot].pair != kNoPair) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    slot = (slot + 1) & mask;
  }
  return nullptr;
}

// False if a byte has no token of its own, so that lengths or ids are not a function of the word's
// tokens alone and the cache must not hold it.
bool Bpe::split_into_bytes(std::string_view word, std::vector<BpeToken>& symbols) const {
  symbols.clear();
  symbols.reserve(word.size());
  bool is_plain = true;
  bool last_is_unk = false;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      symbols.push_back({id, 1});
      last_is_unk = false;
      continue;
    }
    is_plain = false;
    if (unk_id_ < 0) continue;
    if (last_is_unk && fuse_unk_) {
      ++symbols.back().num_bytes;
    } else {
      symbols.push_back({unk_id_, 1});
    }
    last_is_unk = true;
  }
  return is_plain;
}

void Bpe::merge_short(std::vector<BpeToken>& symbols, BpeScratch::State& /*state*/) const {
  std::array<const MergeSlot*, kShortWord> merge_at;  // of symbols i and i + 1
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) {
    merge_at[i] = find_merge(symbols[i].id, symbols[i + 1].id);
  }
  while (count > 1) {
    std::size_t best = count;
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (merge_at[i] != nullptr && (best == count || merge_at[i]->rank < merge_at[best]->rank)) {
        best = i;
      }
    }
    if (best == count) break;
    symbols[best] = {merge_at[best]->result, symbols[best].num_bytes + symbols[best + 1].num_bytes};
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      merge_at[i] = i + 1 < count ? merge_at[i + 1] : nullptr;
    }
    if (best > 0) merge_at[best - 1] = find_merge(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < count) merge_at[best] = find_merge(symbols[best].id, symbols[best + 1].id);
  }
  symbols.resize(count);
}

void Bpe::merge_long(std::vector<BpeToken>& symbols, BpeScratch::State& state) const {
  const auto count = static_cast<std::int32_t>(symbols.size());
  const auto at = [&](std::int32_t i) -> BpeToken& { return symbols[static_cast<std::size_t>(i)]; };
  std::vector<Link>& links = state.links;
  const auto link = [&](std::int32_t i) -> Link& { return links[static_cast<std::size_t>(i)]; };
  links.resize(symbols.size());
  state.heap.clear();
  std::priority_queue<HeapItem, std::vector<HeapItem>, LaterItem> heap(LaterItem{},
                                                                       std::move(state.heap));
  const auto push_pair = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0) return;
    if (const MergeSlot* merge = find_merge(at(left).id, at(right).id)) {
      heap.push({merge->rank, left, at(left).id, at(right).id, merge->result});
    }
  };
  for (std::int32_t i = 0; i < count; ++i) {
    link(i) = {i - 1, i + 1 < count ? i + 1 : -1};
    if (i + 1 < count) push_pair(i, i + 1);
  }
  while (!heap.empty()) {
    const HeapItem item = heap.top();
    heap.pop();
    BpeToken& left = at(item.position);
    if (left.num_bytes == 0 || left.id != item.left) continue;
    const std::int32_t right = link(item.position).next;
    if (right < 0 || at(right).id != item.right) continue;
    left = {item.result, left.num_bytes + at(right).num_bytes};
    at(right).num_bytes = 0;  // gone
    const std::int32_t after = link(right).next;
    link(item.position).next = after;
    if (after >= 0) link(after).previous = item.position;
    push_pair(link(item.position).previous, item.position);
    push_pair(item.position, after);
  }
  std::erase_if(symbols, [](const BpeToken& token) { return token.num_bytes == 0; });
}

void Bpe::encode_word(std::string_view word, BpeScratch& scratch,
                      std::vector<BpeToken>& out) const {
  if (word.empty()) return;
  BpeScratch::State& state = *scratch.state_;
  CacheEntry* entry = nullptr;
  if (word.size() <= kMaxCachedBytes) {
    entry = &state.cache[hash_word(word) & (kCacheEntries - 1)];
    if (entry->num_bytes == word.size() &&
        std::memcmp(entry->key.data(), word.data(), word.size()) == 0) {
      for (std::size_t i = 0; i < entry->num_tokens; ++i) {
        out.push_back({entry->ids[i], entry->token_bytes[i]});
      }
      return;
    }
  }
  std::vector<BpeToken>& symbols = state.symbols;
  bool is_cacheable = entry != nullptr;
  const auto whole =
      whole_words_.empty() ? whole_words_.end() : whole_words_.find(std::string(word));
  if (whole != whole_words_.end()) {
    symbols.assign(1, {whole->second, static_cast<std::uint32_t>(word.size())});
  } else {
    is_cacheable = split_into_bytes(word, symbols) && is_cacheable;
    if (symbols.size() < kShortWord) {
      merge_short(symbols, state);
    } else {
      merge_long(symbols, state);
    }
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
  if (!is_cacheable || symbols.size() > kMaxCachedTokens) return;
  std::memcpy(entry->key.data(), word.data(), word.size());
  entry->num_bytes = static_cast<std::uint8_t>(word.size());
  entry->num_tokens = static_cast<std::uint8_t>(symbols.size());
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    entry->ids[i] = symbols[i].id;
    entry->token_bytes[i] = static_cast<std::uint8_t>(symbols[i].num_bytes);
  }
}

}  // namespace winnow
