// Which adapters may run together: a step holds sequences of at most so many, and whose adapter
// finds no room waits beside the queue, so that others pass. Source: spec/serving.md 1.3, 2.7.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence_order.h"

namespace winnow {

/// Owned by the engine thread. Does not own the sequences.
///
/// Nobody waits for ever: an adapter has its room for a turn of so many steps. After that, and as
/// long as one without room waits, no further request of it starts; those that run go on to their
/// end, and then the room is free for the one that has waited longest.
class AdapterTurns {
 public:
  static constexpr std::int64_t kTurnSteps = 64;  // some seconds of a large model

  AdapterTurns(std::int32_t max_adapters, SequenceOrder order)
      : max_adapters_(max_adapters), order_(order) {}

  /// Once for each step that is planned.
  void begin_step() { ++step_; }

  /// Whether the sequence may start in this step, as far as adapters are concerned.
  bool may_start(const Sequence& sequence) const;
  // A sequence has begun to run, or does not any more.
  void start(const Sequence& sequence);
  void stop(const Sequence& sequence);

  /// Takes in a sequence that may not start.
  void park(Sequence& sequence);
  /// Of those that may start now, the first by (priority, arrival); null: none. It stays.
  Sequence* first_ready() const;
  /// False: it is not one of the parked.
  [[nodiscard]] bool remove(const Sequence& sequence);
  std::int32_t num_parked() const { return static_cast<std::int32_t>(parked_.size()); }

 private:
  struct Turn {
    const ModelAdapter* adapter = nullptr;
    std::int32_t num_running = 0;
    std::int64_t first_step = 0;
  };

  const Turn* turn_of(const Sequence& sequence) const;
  const Sequence* first_without_room() const;
  bool may_start(const Sequence& sequence, const Sequence* rival) const;

  std::int32_t max_adapters_;
  SequenceOrder order_;
  std::int64_t step_ = 0;
  std::vector<Turn> turns_;        // of adapters with running sequences
  std::vector<Sequence*> parked_;  // by (priority, arrival)
};

}  // namespace winnow
