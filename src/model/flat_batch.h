// The engine's batch as operations read it: checked once, then flat arrays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/batch.h"
#include "ops/batch_view.h"

namespace winnow {

/// What a batch must fit.
struct BatchLimits {
  std::int32_t max_num_tokens = 0;
  std::int32_t vocab_size = 0;
  std::int32_t block_tokens = 0;
  std::int32_t num_blocks = 0;
  std::int64_t max_positions = 0;
};

class FlatBatch {
 public:
  void reserve(std::int32_t max_num_tokens);

  /// Takes `batch` over; it must outlive the step (block tables are not copied). Throws
  /// Error{kInternal} that names what does not fit: a batch comes from the engine, and an engine at
  /// fault must cost its batch, not the process.
  void assign(const Batch& batch, const BatchLimits& limits);

  /// Drops the tokens that come before a sequence's first row of logits, or after its last: what
  /// the last layer need not compute once every K and V is in the cache. The i-th of kept_tokens()
  /// is then token i of the view, and logit_rows() point into the view.
  void keep_logit_rows();

  ops::BatchView view() const;
  std::span<const std::int32_t> kept_tokens() const { return kept_tokens_; }  // ascending
  std::span<const std::int32_t> logit_rows() const { return logit_rows_; }
  std::int64_t num_positions() const { return num_positions_; }  // one above the highest
  /// The batch's adapters, each once, and by token of the view which one it has: an index into
  /// them or -1. Without adapters both are empty.
  std::span<const ModelAdapter* const> adapters() const { return adapters_; }
  std::span<const std::int32_t> adapter_of() const { return adapter_of_; }

 private:
  void assign_adapters(const Batch& batch);

  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> sequence_of_;
  std::vector<ops::SequenceSlice> slices_;
  std::vector<std::int32_t> kept_tokens_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<const ModelAdapter*> adapters_;
  std::vector<std::int32_t> adapter_of_;
  std::int64_t num_positions_ = 0;
};

}  // namespace winnow
