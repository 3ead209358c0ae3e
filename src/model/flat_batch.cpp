#include "model/flat_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace winnow {
namespace {

// A table of BlockId is read as the table of integers that it is.
static_assert(sizeof(BlockId) == sizeof(std::int32_t) && alignof(BlockId) == alignof(std::int32_t));

template <typename... Values>
void require(bool condition, fmt::format_string<const Values&...> text, const Values&... values) {
  if (!condition) throw Error(ErrorCode::kInternal, "batch: " + fmt::format(text, values...));
}

void check_sequence(const BatchSequence& sequence, std::size_t index, const BatchLimits& limits) {
  require(sequence.num_tokens >= 0 && sequence.first_position >= 0,
          "sequence {} has {} tokens from position {}", index, sequence.num_tokens,
          sequence.first_position);
  const std::int64_t end = std::int64_t{sequence.first_position} + sequence.num_tokens;
  require(end <= limits.max_positions, "sequence {} reaches position {} of {}", index, end,
          limits.max_positions);
  if (sequence.num_tokens == 0) return;
  const std::int64_t num_blocks = (end + limits.block_tokens - 1) / limits.block_tokens;
  require(num_blocks <= std::ssize(sequence.block_table),
          "sequence {} needs {} blocks, its table has {}", index, num_blocks,
          sequence.block_table.size());
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const std::int32_t row = sequence.block_table[static_cast<std::size_t>(b)].value;
    require(row >= 0 && row < limits.num_blocks, "sequence {} names block {} of {}", index, row,
            limits.num_blocks);
  }
}

}  // namespace

void FlatBatch::reserve(std::int32_t max_num_tokens) {
  positions_.reserve(static_cast<std::size_t>(max_num_tokens));
  sequence_of_.reserve(static_cast<std::size_t>(max_num_tokens));
  slices_.reserve(static_cast<std::size_t>(max_num_tokens));
  kept_tokens_.reserve(static_cast<std::size_t>(max_num_tokens));
  logit_rows_.reserve(static_cast<std::size_t>(max_num_tokens));
  adapter_of_.reserve(static_cast<std::size_t>(max_num_tokens));
}

void FlatBatch::assign(const Batch& batch, const BatchLimits& limits) {
  const auto num_tokens = std::ssize(batch.tokens);
  require(num_tokens <= limits.max_num_tokens, "{} tokens, at most {} fit a step", num_tokens,
          limits.max_num_tokens);
  for (const TokenId token : batch.tokens) {
    require(token >= 0 && token < limits.vocab_size, "token {} of {}", token, limits.vocab_size);
  }
  logit_rows_.assign(batch.logit_rows.begin(), batch.logit_rows.end());
  std::int32_t previous = -1;
  for (const std::int32_t row : batch.logit_rows) {
    require(row > previous && row < num_tokens, "logits of token {} of {}, after {}", row,
            num_tokens, previous);
    previous = row;
  }

  positions_.clear();
  sequence_of_.clear();
  slices_.clear();
  num_positions_ = 0;
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const BatchSequence& sequence = batch.sequences[s];
    require(sequence.num_tokens == 0 || sequence.first_token == std::ssize(positions_),
            "sequence {} starts at token {}, expected {}", s, sequence.first_token,
            positions_.size());
    check_sequence(sequence, s, limits);
    slices_.push_back(
        {.first_token = static_cast<std::int32_t>(positions_.size()),
         .num_tokens = sequence.num_tokens,
         .first_position = sequence.first_position,
         .block_table = reinterpret_cast<const std::int32_t*>(sequence.block_table.data())});
    for (std::int32_t t = 0; t < sequence.num_tokens; ++t) {
      positions_.push_back(sequence.first_position + t);
      sequence_of_.push_back(static_cast<std::int32_t>(s));
    }
    num_positions_ =
        std::max(num_positions_, std::int64_t{sequence.first_position} + sequence.num_tokens);
  }
  require(std::ssize(positions_) == num_tokens, "sequences cover {} tokens of {}",
          positions_.size(), num_tokens);
  assign_adapters(batch);
}

void FlatBatch::assign_adapters(const Batch& batch) {
  adapters_.clear();
  adapter_of_.clear();
  const auto has_adapter = [](const BatchSequence& sequence) {
    return sequence.adapter != nullptr && sequence.num_tokens > 0;
  };
  if (std::ranges::none_of(batch.sequences, has_adapter)) return;
  for (const BatchSequence& sequence : batch.sequences) {
    if (has_adapter(sequence)) adapters_.push_back(sequence.adapter);
  }
  // In an order that the batch has no part in: steps of the same adapters are then alike.
  std::ranges::sort(adapters_, std::less<>());
  adapters_.erase(std::unique(adapters_.begin(), adapters_.end()), adapters_.end());
  for (const BatchSequence& sequence : batch.sequences) {
    std::int32_t index = -1;
    if (has_adapter(sequence)) {
      const auto known = std::ranges::lower_bound(adapters_, sequence.adapter, std::less<>());
      index = static_cast<std::int32_t>(known - adapters_.begin());
    }
    adapter_of_.insert(adapter_of_.end(), static_cast<std::size_t>(sequence.num_tokens), index);
  }
}

void FlatBatch::keep_logit_rows() {
  kept_tokens_.clear();
  std::size_t next = 0;  // first row of logits that no earlier sequence has
  for (ops::SequenceSlice& slice : slices_) {
    const std::size_t begin = next;
    while (next < logit_rows_.size() && logit_rows_[next] < slice.first_token + slice.num_tokens) {
      ++next;
    }
    const auto first_kept = static_cast<std::int32_t>(kept_tokens_.size());
    if (begin == next) {
      slice = {.first_token = first_kept,
               .num_tokens = 0,
               .first_position = slice.first_position,
               .block_table = slice.block_table};
      continue;
    }
    const std::int32_t first = logit_rows_[begin];
    const std::int32_t last = logit_rows_[next - 1];
    for (std::int32_t t = first; t <= last; ++t) kept_tokens_.push_back(t);
    for (std::size_t i = begin; i < next; ++i) logit_rows_[i] += first_kept - first;
    slice = {.first_token = first_kept,
             .num_tokens = last - first + 1,
             .first_position = slice.first_position + first - slice.first_token,
             .block_table = slice.block_table};
  }
  for (std::size_t i = 0; i < kept_tokens_.size(); ++i) {
    const auto from = static_cast<std::size_t>(kept_tokens_[i]);
    positions_[i] = positions_[from];
    sequence_of_[i] = sequence_of_[from];
    if (!adapters_.empty()) adapter_of_[i] = adapter_of_[from];
  }
  if (!adapters_.empty()) adapter_of_.resize(kept_tokens_.size());
  positions_.resize(kept_tokens_.size());
  sequence_of_.resize(kept_tokens_.size());
}

ops::BatchView FlatBatch::view() const {
  std::int32_t longest = 0;
  for (const ops::SequenceSlice& slice : slices_) longest = std::max(longest, slice.num_tokens);
  return {.num_tokens = static_cast<std::int32_t>(positions_.size()),
          .positions = positions_.data(),
          .sequence_of = sequence_of_.data(),
          .sequences = slices_,
          .max_slice_tokens = longest,
          .num_positions = static_cast<std::int32_t>(num_positions_)};
}

}  // namespace winnow
