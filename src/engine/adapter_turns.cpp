#include "engine/adapter_turns.h"

#include <algorithm>

#include "base/assert.h"
#include "engine/waiting_queue.h"

namespace winnow {
namespace {

const ModelAdapter* adapter_of(const Sequence& sequence) {
  return sequence.request->request.adapter.get();
}

}  // namespace

bool AdapterTurns::may_start(const Sequence& sequence) const {
  if (adapter_of(sequence) == nullptr) return true;
  const Turn* turn = turn_of(sequence);
  if (turn == nullptr) return std::ssize(turns_) < max_adapters_;
  const bool is_turn_over = step_ - turn->first_step >= kTurnSteps;
  return !is_turn_over || sequence.request->is_admitted || !has_rival(sequence);
}

void AdapterTurns::start(const Sequence& sequence) {
  const ModelAdapter* adapter = adapter_of(sequence);
  if (adapter == nullptr) return;
  auto turn = std::ranges::find(turns_, adapter, &Turn::adapter);
  if (turn == turns_.end()) {
    turn = turns_.insert(turn, {.adapter = adapter, .first_step = step_});
  }
  ++turn->num_running;
}

void AdapterTurns::stop(const Sequence& sequence) {
  const ModelAdapter* adapter = adapter_of(sequence);
  if (adapter == nullptr) return;
  const auto turn = std::ranges::find(turns_, adapter, &Turn::adapter);
  WINNOW_ASSERT(turn != turns_.end(), "what runs was started", turns_.size());
  if (--turn->num_running == 0) turns_.erase(turn);
}

void AdapterTurns::park(Sequence& sequence) {
  const auto at = std::ranges::find_if(
      parked_, [&](const Sequence* other) { return goes_before(sequence, *other); });
  parked_.insert(at, &sequence);
}

Sequence* AdapterTurns::first_ready() const {
  const auto found = std::ranges::find_if(
      parked_, [this](const Sequence* sequence) { return may_start(*sequence); });
  return found == parked_.end() ? nullptr : *found;
}

bool AdapterTurns::remove(const Sequence& sequence) { return std::erase(parked_, &sequence) > 0; }

const AdapterTurns::Turn* AdapterTurns::turn_of(const Sequence& sequence) const {
  const auto found = std::ranges::find(turns_, adapter_of(sequence), &Turn::adapter);
  return found == turns_.end() ? nullptr : &*found;
}

/// Whether one whose adapter has no room waits, and not for less than the sequence would.
bool AdapterTurns::has_rival(const Sequence& sequence) const {
  return std::ranges::any_of(parked_, [&](const Sequence* other) {
    return turn_of(*other) == nullptr && priority_of(*other) <= priority_of(sequence);
  });
}

std::int32_t AdapterTurns::priority_of(const Sequence& sequence) const {
  return use_priority_ ? sequence.request->request.priority : 0;
}

bool AdapterTurns::goes_before(const Sequence& a, const Sequence& b) const {
  const std::int32_t own = priority_of(a);
  const std::int32_t theirs = priority_of(b);
  return own != theirs ? own < theirs : arrived_before(a, b);
}

}  // namespace winnow
