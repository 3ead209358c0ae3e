#include "engine/adapter_turns.h"

#include <algorithm>

#include "base/assert.h"

namespace winnow {
namespace {

const ModelAdapter* adapter_of(const Sequence& sequence) {
  return sequence.request->request.adapter.get();
}

}  // namespace

bool AdapterTurns::may_start(const Sequence& sequence) const {
  return adapter_of(sequence) == nullptr || may_start(sequence, first_without_room());
}

/// `rival`: first_without_room().
bool AdapterTurns::may_start(const Sequence& sequence, const Sequence* rival) const {
  const Turn* turn = turn_of(sequence);
  if (turn == nullptr) return std::ssize(turns_) < max_adapters_;
  const bool is_turn_over = step_ - turn->first_step >= kTurnSteps;
  const bool has_rival =
      rival != nullptr && order_.priority_of(*rival) <= order_.priority_of(sequence);
  return !is_turn_over || sequence.request->is_admitted || !has_rival;
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
      parked_, [&](const Sequence* other) { return order_.is_before(sequence, *other); });
  parked_.insert(at, &sequence);
}

Sequence* AdapterTurns::first_ready() const {
  const Sequence* const rival = first_without_room();
  const auto found = std::ranges::find_if(
      parked_, [&](const Sequence* sequence) { return may_start(*sequence, rival); });
  return found == parked_.end() ? nullptr : *found;
}

bool AdapterTurns::remove(const Sequence& sequence) { return std::erase(parked_, &sequence) > 0; }

const AdapterTurns::Turn* AdapterTurns::turn_of(const Sequence& sequence) const {
  const auto found = std::ranges::find(turns_, adapter_of(sequence), &Turn::adapter);
  return found == turns_.end() ? nullptr : &*found;
}

/// Of the parked whose adapter has no room the first, which is one of the best priority.
const Sequence* AdapterTurns::first_without_room() const {
  const auto found = std::ranges::find_if(
      parked_, [this](const Sequence* sequence) { return turn_of(*sequence) == nullptr; });
  return found == parked_.end() ? nullptr : *found;
}

}  // namespace winnow
