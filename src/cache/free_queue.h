// Blocks nobody uses, oldest first: a doubly linked list in two arrays, every operation O(1).
#pragma once

#include <cstdint>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

class FreeQueue {
 public:
  /// Holds ids of [0, num_blocks); starts empty.
  explicit FreeQueue(std::int32_t num_blocks);

  std::int32_t size() const { return size_; }
  bool contains(BlockId block) const { return links_[index(block)].next != kOutside; }
  /// The next to be handed out; the queue is not empty.
  BlockId front() const { return BlockId{links_.back().next}; }
  /// The one after `block`, or an invalid id (-1) at the end.
  BlockId after(BlockId block) const;

  void push_front(BlockId block) { insert_before(links_.back().next, block.value); }
  void push_back(BlockId block) { insert_before(sentinel(), block.value); }
  void remove(BlockId block);

 private:
  static constexpr std::int32_t kOutside = -1;
  struct Link {
    std::int32_t previous = kOutside, next = kOutside;
  };

  static std::size_t index(BlockId block) { return static_cast<std::size_t>(block.value); }
  std::int32_t sentinel() const { return static_cast<std::int32_t>(links_.size()) - 1; }
  void insert_before(std::int32_t position, std::int32_t block);

  std::vector<Link> links_;  // the last one is the sentinel: its next is the front
  std::int32_t size_ = 0;
};

}  // namespace winnow
