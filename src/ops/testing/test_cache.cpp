#include "ops/testing/test_cache.h"

#include <algorithm>

#include "base/assert.h"
#include "formats/bulk_codecs.h"

namespace winnow::ops::testing {

TestBatch::TestBatch(const std::vector<TestSequence>& sequences, std::int32_t block_tokens,
                     std::int32_t num_rows, RandomInputs& random) {
  const std::vector<std::int32_t> rows = random.permutation(num_rows);
  std::size_t next_row = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const TestSequence& sequence = sequences[s];
    const std::int32_t end = sequence.first_position + sequence.num_tokens;
    const std::int32_t num_blocks = (end + block_tokens - 1) / block_tokens;
    std::vector<std::int32_t>& table = block_tables_.emplace_back();
    for (std::int32_t b = 0; b < num_blocks; ++b) {
      WINNOW_ASSERT(next_row < rows.size(), "the test pool is large enough", num_rows);
      table.push_back(rows[next_row++]);
    }
    slices_.push_back({.first_token = num_tokens(),
                       .num_tokens = sequence.num_tokens,
                       .first_position = sequence.first_position,
                       .block_table = nullptr});
    for (std::int32_t t = 0; t < sequence.num_tokens; ++t) {
      positions_.push_back(sequence.first_position + t);
      sequence_of_.push_back(static_cast<std::int32_t>(s));
    }
  }
  for (std::size_t s = 0; s < slices_.size(); ++s) slices_[s].block_table = block_tables_[s].data();
}

BatchView TestBatch::view() const {
  return {.num_tokens = num_tokens(),
          .positions = positions_.data(),
          .sequence_of = sequence_of_.data(),
          .sequences = slices_};
}

BatchPart::BatchPart(const BatchView& whole, std::int32_t first, std::int32_t count)
    : positions_(whole.positions + first, whole.positions + first + count),
      sequence_of_(whole.sequence_of + first, whole.sequence_of + first + count) {
  for (const SequenceSlice& slice : whole.sequences) {
    const std::int32_t begin = std::clamp(first - slice.first_token, 0, slice.num_tokens);
    const std::int32_t end = std::clamp(first + count - slice.first_token, 0, slice.num_tokens);
    slices_.push_back({.first_token = std::max(slice.first_token - first, 0),
                       .num_tokens = end - begin,
                       .first_position = slice.first_position + begin,
                       .block_table = slice.block_table});
  }
}

BatchView BatchPart::view() const {
  return {.num_tokens = static_cast<std::int32_t>(positions_.size()),
          .positions = positions_.data(),
          .sequence_of = sequence_of_.data(),
          .sequences = slices_};
}

TestCache::TestCache(const CacheRowShape& shape, std::int32_t num_rows, DequantMode mode)
    : layout_(std::make_unique<CacheRowLayout>(shape)),
      pool_(layout_->row_bytes() * num_rows, "test pool"),
      mode_(mode) {
  poison(bytes());
}

CacheView TestCache::view() const {
  return {.pool = pool_.data(), .layout = layout_.get(), .mode = mode_};
}

std::span<std::byte> TestCache::bytes() const {
  return {pool_.data(), static_cast<std::size_t>(pool_.size())};
}

void TestCache::store(const CachePlane& plane, std::byte* row, int token, RandomInputs& random,
                      float scale) const {
  const std::vector<float> x = random.normals(plane.dim, scale);
  encode_cache_vector(plane.dtype, x, plane.data(row, token), plane.scales(row, token),
                      kScalarCodecs);
}

void TestCache::fill(const BatchView& batch, int layer, RandomInputs& random, float spread) const {
  const int block_tokens = layout_->shape().block_tokens;
  for (const SequenceSlice& slice : batch.sequences) {
    for (std::int32_t p = 0; p < slice.first_position + slice.num_tokens; ++p) {
      const std::int64_t row_number = slice.block_table[p / block_tokens];
      std::byte* const row = pool_.data() + row_number * layout_->row_bytes();
      for (int head = 0; head < layout_->shape().num_kv_heads; ++head) {
        store(layout_->k(layer, head), row, p % block_tokens, random, spread);
        store(layout_->v(layer, head), row, p % block_tokens, random, 1.0F);
      }
      if (layout_->has_index(layer)) {
        store(layout_->index_k(layer), row, p % block_tokens, random, spread);
      }
    }
  }
}

}  // namespace winnow::ops::testing
