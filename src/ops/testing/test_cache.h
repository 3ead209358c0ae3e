// A KV pool full of NaN bytes with a batch of sequences in it, for tests of the operations that
// read or write the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "ops/batch_view.h"
#include "ops/cache_view.h"
#include "ops/testing/random_inputs.h"

namespace winnow::ops::testing {

/// New tokens of one sequence and what its cache holds before.
struct TestSequence {
  std::int32_t first_position = 0;
  std::int32_t num_tokens = 0;
};

/// Positions, block tables (random rows of the pool) and slices of a batch.
class TestBatch {
 public:
  /// Rows are drawn from [0, num_rows), each used once; there must be enough.
  TestBatch(const std::vector<TestSequence>& sequences, std::int32_t block_tokens,
            std::int32_t num_rows, RandomInputs& random);

  BatchView view() const;
  std::int32_t num_tokens() const { return static_cast<std::int32_t>(positions_.size()); }

 private:
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> sequence_of_;
  std::vector<std::vector<std::int32_t>> block_tables_;
  std::vector<SequenceSlice> slices_;
};

/// Tokens [first, first + count) of another batch as a call of their own, over the same blocks.
class BatchPart {
 public:
  BatchPart(const BatchView& whole, std::int32_t first, std::int32_t count);

  BatchView view() const;

 private:
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> sequence_of_;
  std::vector<SequenceSlice> slices_;
};

class TestCache {
 public:
  /// `num_rows` rows, poisoned.
  TestCache(const CacheRowShape& shape, std::int32_t num_rows, DequantMode mode);

  CacheView view() const;
  const CacheRowLayout& layout() const { return *layout_; }
  std::span<std::byte> bytes() const;

  /// Random K, V and index keys of `layer` at every position that the batch's sequences cover, new
  /// tokens included; the rest stays poisoned. `spread` scales keys: larger gives peaky softmax.
  void fill(const BatchView& batch, int layer, RandomInputs& random, float spread = 1.0F) const;

  /// One random vector.
  void store(const CachePlane& plane, std::byte* row, int token, RandomInputs& random,
             float scale) const;

 private:
  std::unique_ptr<const CacheRowLayout> layout_;
  Buffer pool_;
  DequantMode mode_;
};

}  // namespace winnow::ops::testing
