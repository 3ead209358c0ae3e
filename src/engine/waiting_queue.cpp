#include "engine/waiting_queue.h"

#include <algorithm>

#include "base/assert.h"

namespace winnow {

void WaitingQueue::push(Sequence& sequence) {
  Level& level = level_of(sequence);
  const std::string& key = key_of(sequence);
  auto found = level.keys.find(key);
  if (found == level.keys.end()) {
    // The end of the round: just before the key whose turn it is.
    const auto added = level.ring.insert(level.turn, KeyQueue{.key = key, .sequences = {}});
    if (level.turn == level.ring.end()) {
      level.turn = added;
      added->deficit = options_.quantum;
    }
    found = level.keys.emplace(key, added).first;
  }
  found->second->sequences.push_back(&sequence);
  ++size_;
}

void WaitingQueue::push_resumed(Sequence& sequence) {
  std::deque<Sequence*>& resumed = level_of(sequence).resumed;
  const auto at = std::ranges::find_if(
      resumed, [&](const Sequence* other) { return arrived_before(sequence, *other); });
  resumed.insert(at, &sequence);
  ++size_;
}

Sequence& WaitingQueue::peek() {
  WINNOW_ASSERT(size_ > 0, "peek needs a sequence");
  Level& level = levels_.begin()->second;
  if (!level.resumed.empty()) return *level.resumed.front();
  take_turns(level);
  return *level.turn->sequences.front();
}

Sequence& WaitingQueue::pop() {
  Sequence& sequence = peek();
  Level& level = levels_.begin()->second;
  const std::int32_t priority = levels_.begin()->first;
  if (!level.resumed.empty()) {
    level.resumed.pop_front();
  } else {
    level.turn->deficit -= cost_of(sequence);
    level.turn->sequences.pop_front();
    if (level.turn->sequences.empty()) erase_key(level, level.turn);
  }
  --size_;
  drop_level_if_empty(priority);
  return sequence;
}

void WaitingQueue::remove(Sequence& sequence) {
  const std::int32_t priority = options_.order.priority_of(sequence);
  Level& level = level_of(sequence);
  const auto resumed = std::ranges::find(level.resumed, &sequence);
  if (resumed != level.resumed.end()) {
    level.resumed.erase(resumed);
  } else {
    const auto key = level.keys.find(key_of(sequence));
    WINNOW_ASSERT(key != level.keys.end(), "a waiting sequence is in the queue",
                  sequence.request->id);
    std::deque<Sequence*>& sequences = key->second->sequences;
    const auto at = std::ranges::find(sequences, &sequence);
    WINNOW_ASSERT(at != sequences.end(), "a waiting sequence is in the queue",
                  sequence.request->id);
    sequences.erase(at);
    if (sequences.empty()) erase_key(level, key->second);
  }
  --size_;
  drop_level_if_empty(priority);
}

WaitingQueue::Level& WaitingQueue::level_of(const Sequence& sequence) {
  const auto [at, is_new] = levels_.try_emplace(options_.order.priority_of(sequence));
  if (is_new) at->second.turn = at->second.ring.end();
  return at->second;
}

const std::string& WaitingQueue::key_of(const Sequence& sequence) const {
  static const std::string kEverybody;
  return options_.is_fair ? sequence.request->request.fairness_key : kEverybody;
}

/// Gives quanta until the key whose turn it is can pay for its first sequence.
void WaitingQueue::take_turns(Level& level) {
  if (level.ring.size() == 1) return;  // nobody to be fair to
  const auto rounds_to_wait = [&](const KeyQueue& key) {
    const std::int64_t lacking = cost_of(*key.sequences.front()) - key.deficit;
    return lacking <= 0 ? 0 : (lacking + options_.quantum - 1) / options_.quantum;
  };
  // Whole rounds in which nobody could pay are given at once.
  std::int64_t rounds = rounds_to_wait(level.ring.front());
  for (const KeyQueue& key : level.ring) rounds = std::min(rounds, rounds_to_wait(key));
  if (rounds > 1) {
    for (KeyQueue& key : level.ring) key.deficit += (rounds - 1) * options_.quantum;
  }
  while (rounds_to_wait(*level.turn) > 0) advance(level);
}

void WaitingQueue::advance(Level& level) {
  if (++level.turn == level.ring.end()) level.turn = level.ring.begin();
  level.turn->deficit += options_.quantum;
}

void WaitingQueue::erase_key(Level& level, Ring::iterator key) {
  if (level.ring.size() == 1) {
    level.turn = level.ring.end();
  } else if (key == level.turn) {
    advance(level);
  }
  level.keys.erase(key->key);
  level.ring.erase(key);
}

void WaitingQueue::drop_level_if_empty(std::int32_t priority) {
  const auto at = levels_.find(priority);
  if (at->second.resumed.empty() && at->second.ring.empty()) levels_.erase(at);
}

std::int64_t WaitingQueue::cost_of(Sequence& sequence) const {
  if (sequence.admission_cost == 0) sequence.admission_cost = options_.cost(sequence);
  return std::max(sequence.admission_cost, 1);
}

}  // namespace winnow
