#include "model/draft_batch.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace winnow {
namespace {

constexpr std::int64_t kAlignment = 256;

constexpr std::int64_t aligned(std::size_t num_bytes) {
  return (static_cast<std::int64_t>(num_bytes) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

void DraftBatch::list(std::span<const Sequence> sequences, std::span<const std::int32_t> values) {
  view_ = {};
  integers_.clear();
  slices_.clear();
  table_at_.clear();
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
  for (const Sequence& sequence : sequences) {
    table_at_.push_back(std::ssize(integers_));
    for (const BlockId block : sequence.block_table) integers_.push_back(block.value);
  }
}

/// Where that many bytes of the staging block will lie for the backend.
const std::byte* DraftBatch::make_room(std::int64_t num_bytes) {
  staging_.resize(static_cast<std::size_t>(num_bytes));
  if (memory_->is_host()) return staging_.data();
  if (num_bytes > device_.size()) {
    device_ = {};
    device_ = ops::Array<std::byte>(memory_, 2 * num_bytes, "the batch of a draft");
    ++generation_;
  }
  return device_.data();
}

/// The block: draws, slices, integers, in that order.
void DraftBatch::place(std::span<const Sequence> sequences, std::span<const std::int32_t> values,
                       std::span<const ops::Draw> draws) {
  list(sequences, values);
  const std::span<ops::SequenceSlice> slices(slices_);
  const std::int64_t slices_at = aligned(draws.size_bytes());
  const std::int64_t integers_at = slices_at + aligned(slices.size_bytes());
  const std::size_t integer_bytes = integers_.size() * sizeof(std::int32_t);
  const std::byte* const base = make_room(integers_at + aligned(integer_bytes));
  const auto* const integers = reinterpret_cast<const std::int32_t*>(base + integers_at);
  for (std::size_t s = 0; s < slices_.size(); ++s) {
    slices_[s].block_table = integers + table_at_[s];
  }
  const auto write = [this](std::int64_t at, const void* from, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(staging_.data() + at, from, num_bytes);
  };
  write(0, draws.data(), draws.size_bytes());
  write(slices_at, slices.data(), slices.size_bytes());
  write(integers_at, integers_.data(), integer_bytes);
  if (!memory_->is_host() && !staging_.empty()) {
    memory_->upload(device_.data(), staging_.data(), std::ssize(staging_));
  }
  draws_ = reinterpret_cast<const ops::Draw*>(base);
  view_.sequences = {reinterpret_cast<const ops::SequenceSlice*>(base + slices_at), slices.size()};
  view_.positions = integers;
  view_.sequence_of = integers + view_.num_tokens;
  values_ = integers + 2 * std::int64_t{view_.num_tokens};
}

ops::BatchView DraftBatch::part(std::int32_t first, std::int32_t count) const {
  ops::BatchView part = view_;
  part.num_tokens = count;
  part.positions += first;
  part.sequence_of += first;
  return part;
}

}  // namespace winnow
