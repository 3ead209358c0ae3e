#include "model/draft_batch.h"

#include <algorithm>

#include "base/assert.h"

namespace winnow {
namespace {

/// `values` in the backend's memory, in an array that only grows.
template <typename T>
const T* upload(const std::shared_ptr<ops::Memory>& memory, const std::vector<T>& values,
                ops::Array<T>& room) {
  if (std::ssize(values) > room.size()) {
    room = {};
    room = ops::Array<T>(memory, 2 * std::ssize(values), "the batch of a draft");
  }
  if (!values.empty()) {
    memory->upload(room.data(), values.data(),
                   std::ssize(values) * static_cast<std::int64_t>(sizeof(T)));
  }
  return room.data();
}

}  // namespace

void DraftBatch::place(std::span<const Sequence> sequences, std::span<const std::int32_t> values) {
  view_ = {};
  integers_.clear();
  slices_.clear();
  for (const Sequence& sequence : sequences) {
    for (std::int32_t t = 0; t < sequence.num_tokens; ++t) {
      integers_.push_back(sequence.first_position + t);
    }
    slices_.push_back({.first_token = view_.num_tokens,
                       .num_tokens = sequence.num_tokens,
                       .first_position = sequence.first_position,
                       .block_table = nullptr});
    view_.num_tokens += sequence.num_tokens;
    view_.max_slice_tokens = std::max(view_.max_slice_tokens, sequence.num_tokens);
    view_.num_positions =
        std::max(view_.num_positions, sequence.first_position + sequence.num_tokens);
  }
  WINNOW_ASSERT(std::ssize(values) == view_.num_tokens, "a value for every token", values.size(),
                view_.num_tokens);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    integers_.insert(integers_.end(), static_cast<std::size_t>(sequences[s].num_tokens),
                     static_cast<std::int32_t>(s));
  }
  integers_.insert(integers_.end(), values.begin(), values.end());
  std::vector<std::size_t> table_at;
  for (const Sequence& sequence : sequences) {
    table_at.push_back(integers_.size());
    for (const BlockId block : sequence.block_table) integers_.push_back(block.value);
  }
  const bool is_host = memory_->is_host();
  const std::int32_t* const base =
      is_host ? integers_.data() : upload(memory_, integers_, device_integers_);
  for (std::size_t s = 0; s < slices_.size(); ++s) slices_[s].block_table = base + table_at[s];
  view_.positions = base;
  view_.sequence_of = base + view_.num_tokens;
  values_ = base + 2 * std::int64_t{view_.num_tokens};
  view_.sequences = {is_host ? slices_.data() : upload(memory_, slices_, device_slices_),
                     slices_.size()};
}

ops::BatchView DraftBatch::part(std::int32_t first, std::int32_t count) const {
  ops::BatchView part = view_;
  part.num_tokens = count;
  part.positions += first;
  part.sequence_of += first;
  return part;
}

}  // namespace winnow
