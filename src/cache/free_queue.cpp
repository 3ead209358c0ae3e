#include "cache/free_queue.h"

#include "base/assert.h"

namespace winnow {

FreeQueue::FreeQueue(std::int32_t num_blocks) : links_(static_cast<std::size_t>(num_blocks) + 1) {
  links_.back() = {.previous = sentinel(), .next = sentinel()};
}

BlockId FreeQueue::after(BlockId block) const {
  const std::int32_t next = links_[index(block)].next;
  return BlockId{next == sentinel() ? -1 : next};
}

void FreeQueue::insert_before(std::int32_t position, std::int32_t block) {
  Link& link = links_[static_cast<std::size_t>(block)];
  WINNOW_ASSERT(link.next == kOutside, "a block is in the free queue at most once", block);
  Link& after = links_[static_cast<std::size_t>(position)];
  link = {.previous = after.previous, .next = position};
  links_[static_cast<std::size_t>(after.previous)].next = block;
  after.previous = block;
  ++size_;
}

void FreeQueue::remove(BlockId block) {
  Link& link = links_[index(block)];
  WINNOW_ASSERT(link.next != kOutside, "only a free block leaves the free queue", block.value);
  links_[static_cast<std::size_t>(link.previous)].next = link.next;
  links_[static_cast<std::size_t>(link.next)].previous = link.previous;
  link = {};
  --size_;
}

}  // namespace winnow
