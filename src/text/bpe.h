// Byte-pair merges of one word over bytes. Applies the merge of lowest rank, leftmost first, until
// none is left: with a heap over a linked list O(n log n) for a word of n bytes, by plain scans for
// short words, both with the same result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct BpeToken {
  TokenId id;
  std::uint32_t num_bytes;
};

struct BpeConfig {
  std::vector<std::pair<std::string, TokenId>> vocab;  // bytes, not spellings
  struct Merge {
    TokenId left;
    TokenId right;
    TokenId result;
  };
  std::vector<Merge> merges;  // by rank; of a repeated pair the last one counts
  TokenId unk_id = -1;        // -1: bytes without a token are dropped
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is a token is taken whole
};

/// Work space of one encode call: buffers and a bounded cache of words. Not shared by threads.
class BpeScratch {
 public:
  BpeScratch();
  ~BpeScratch();

 private:
  friend class Bpe;
  struct State;
  std::unique_ptr<State> state_;
};

/// Immutable; any number of threads, each with its own scratch.
class Bpe {
 public:
  explicit Bpe(const BpeConfig& config);

  /// Appends the tokens of `word`; their num_bytes add up to word.size() unless bytes were dropped.
  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<BpeToken>& out) const;

 private:
  struct MergeSlot {
    std::uint64_t pair = kNoPair;
    std::uint32_t rank = 0;
    TokenId result = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  void add_merge(std::uint64_t pair, std::uint32_t rank, TokenId result);
  const MergeSlot* find_merge(TokenId left, TokenId right) const;
  bool split_into_bytes(std::string_view word, std::vector<BpeToken>& symbols) const;
  void merge_short(std::vector<BpeToken>& symbols, BpeScratch::State& state) const;
  void merge_long(std::vector<BpeToken>& symbols, BpeScratch::State& state) const;

  std::vector<MergeSlot> merges_;  // open addressing, at most half full
  int merge_shift_ = 0;
  TokenId byte_ids_[256];
  std::unordered_map<std::string, TokenId> whole_words_;  // filled for ignore_merges only
  TokenId unk_id_;
  bool fuse_unk_;
};

}  // namespace winnow
