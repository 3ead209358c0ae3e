// Sequences that hold no blocks. Order: priority; then those that ran before, by arrival; then new
// ones, round-robin over fairness keys so that one client's long prompts do not block the others.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/sequence_order.h"

namespace winnow {

/// Owned by the engine thread. Does not own the sequences.
///
/// Fairness is deficit round-robin (Shreedhar and Varghese, 1995): a key may admit prompts for as
/// many uncached tokens as the quanta it was given; a key that has nothing to admit keeps no
/// credit.
class WaitingQueue {
 public:
  struct Options {
    SequenceOrder order{};
    bool is_fair = true;
    std::int64_t quantum = 2048;                  // tokens a key gains per round
    std::function<std::int32_t(Sequence&)> cost;  // uncached tokens of a prompt, at least 1
  };
  explicit WaitingQueue(Options options) : options_(std::move(options)) {}

  std::int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  void push(Sequence& sequence);
  /// One that was admitted before: ahead of all new ones of its priority.
  void push_resumed(Sequence& sequence);

  /// The next to admit; the same until something is pushed, popped or removed. Not empty.
  Sequence& peek();
  /// Takes out what peek() returns and charges its key.
  Sequence& pop();
  void remove(Sequence& sequence);

 private:
  struct KeyQueue {
    std::string key;
    std::deque<Sequence*> sequences;
    std::int64_t deficit = 0;
  };
  using Ring = std::list<KeyQueue>;
  struct Level {  // of one priority
    std::deque<Sequence*> resumed;
    Ring ring;
    Ring::iterator turn = ring.end();  // whose turn it is
    std::unordered_map<std::string, Ring::iterator> keys;
  };

  Level& level_of(const Sequence& sequence);
  const std::string& key_of(const Sequence& sequence) const;
  void take_turns(Level& level);
  void advance(Level& level);
  void erase_key(Level& level, Ring::iterator key);
  void drop_level_if_empty(std::int32_t priority);
  std::int64_t cost_of(Sequence& sequence) const;

  Options options_;
  std::int32_t size_ = 0;
  std::map<std::int32_t, Level> levels_;
};

}  // namespace winnow
