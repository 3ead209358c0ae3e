// Faults of block selection seen in comparable engines, each a test named for the fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "ops/testing/compare_bits.h"
#include "test_model.h"

namespace winnow::testing {
namespace {

using ops::testing::bits_equal;
using ops::testing::RandomInputs;

/// Keeps every selection: [layer][position] → blocks of all heads.
class SelectionRecorder final : public DecoderTrace {
 public:
  void on_blocks(const BlockSelectionView& selection) override {
    const auto width = static_cast<std::size_t>(selection.shape.num_index_heads) *
                       static_cast<std::size_t>(selection.shape.top_k_blocks);
    top_k = static_cast<std::size_t>(selection.shape.top_k_blocks);
    for (std::int32_t t = 0; t < selection.batch.num_tokens; ++t) {
      const auto row = selection.blocks.subspan(static_cast<std::size_t>(t) * width, width);
      rows[{selection.layer, selection.batch.positions[t]}].assign(row.begin(), row.end());
    }
  }

  std::size_t top_k = 0;
  std::map<std::pair<int, std::int32_t>, std::vector<std::int32_t>> rows;
};

struct Outcome {
  std::vector<float> logits;
  SelectionRecorder selections;
};

Outcome run(const TestModel& model, const std::string& backend, const std::vector<TokenId>& tokens,
            std::int64_t chunk_tokens) {
  const LoadedModel loaded =
      model.load(backend, {.kv_dtype = CacheDType::kBF16,
                           .index_dtype = CacheDType::kBF16,
                           .max_num_batched_tokens = static_cast<std::int32_t>(
                               std::min<std::int64_t>(chunk_tokens, std::ssize(tokens))),
                           .num_threads = 1});
  Decoder& decoder = *loaded.decoder;
  const auto num_blocks =
      static_cast<std::int32_t>(std::ssize(tokens) / decoder.block_tokens()) + 1;
  allocate_pool(decoder, num_blocks + 2, PoolState::kPoisoned);
  Outcome result;
  decoder.set_trace(&result.selections);
  TestSequence sequence(decoder, highest_rows_first(decoder, num_blocks));
  result.logits = sequence.append_in_chunks(tokens, chunk_tokens);
  return result;
}

std::vector<TokenId> tokens_of(const TestModel& model, std::int64_t count, std::uint64_t stream) {
  RandomInputs random(stream);
  return random_tokens(count, model.options().vocab_size, random);
}

RandomCheckpoint four_index_heads() {
  RandomCheckpoint options;
  options.num_heads = 8;
  options.num_kv_heads = 4;
  return options;
}

// Fault A1: head and token axes swapped, which cannot be told from shapes when a chunk has as many
// tokens as there are index heads.
TEST(SelectionCases, ChunksOfAsManyTokensAsIndexHeads) {
  const TestModel model(four_index_heads());
  const auto prompt = tokens_of(model, 100, 60);
  const Outcome expected = run(model, reference_backend(), prompt, 100);
  for (const std::string& backend : backend_names()) {
    SCOPED_TRACE(backend);
    for (const std::int64_t chunk : {4, 3, 5, 1, 100}) {
      const Outcome actual = run(model, backend, prompt, chunk);
      EXPECT_EQ(expected.selections.rows, actual.selections.rows) << "chunks of " << chunk;
      ASSERT_TRUE(bits_equal(expected.logits, actual.logits, {100, model.options().vocab_size}))
          << "chunks of " << chunk;
    }
    const auto longer = tokens_of(model, 184, 61);
    EXPECT_EQ(run(model, reference_backend(), longer, 184).selections.rows,
              run(model, backend, longer, 184).selections.rows);
  }
}

// Fault A3: fewer blocks than top-k, the forced newest block, duplicates, padding; contexts of 1 to
// 17 blocks at prefill and at decode.
TEST(SelectionCases, EveryListHoldsTheNewestBlockOnceAndNoFutureOne) {
  const TestModel model(four_index_heads());
  const std::int32_t block = model.options().block_tokens;
  const auto prompt = tokens_of(model, 17 * block, 62);
  for (const std::string& backend : backend_names()) {
    SCOPED_TRACE(backend);
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{17 * block}}) {
      const Outcome result = run(model, backend, prompt, chunk);
      const std::size_t top_k = result.selections.top_k;
      for (const auto& [key, lists] : result.selections.rows) {
        const std::int32_t own = key.second / block;
        for (std::size_t begin = 0; begin < lists.size(); begin += top_k) {
          const auto list = std::span(lists).subspan(begin, top_k);
          const auto num_valid =
              static_cast<std::size_t>(std::ranges::find(list, -1) - list.begin());
          ASSERT_EQ(num_valid, std::min<std::size_t>(top_k, static_cast<std::size_t>(own) + 1));
          ASSERT_TRUE(std::all_of(list.begin() + static_cast<std::ptrdiff_t>(num_valid), list.end(),
                                  [](std::int32_t b) { return b == -1; }));
          const std::set<std::int32_t> distinct(
              list.begin(), list.begin() + static_cast<std::ptrdiff_t>(num_valid));
          ASSERT_EQ(distinct.size(), num_valid);
          ASSERT_EQ(*distinct.rbegin(), own);
          ASSERT_GE(*distinct.begin(), 0);
        }
      }
    }
  }
}

// Fault A7: a chunk that starts late must see every earlier block, and selections must not depend
// on the split.
TEST(SelectionCases, SixThousandTokensWholeInChunksAndAfterAHit) {
  RandomCheckpoint options = random_m31();
  options.layers = {{.is_sparse_attention = true, .is_moe = true}};
  options.top_k_blocks = 16;
  options.hidden_size = 64;
  const TestModel model(options);
  const auto prompt = tokens_of(model, 6000, 63);
  const Outcome expected = run(model, best_backend(), prompt, 6000);
  for (const std::int64_t chunk : {2048, 128, 100}) {
    const Outcome actual = run(model, best_backend(), prompt, chunk);
    EXPECT_EQ(expected.selections.rows, actual.selections.rows) << "chunks of " << chunk;
    ASSERT_TRUE(bits_equal(expected.logits, actual.logits, {6000, options.vocab_size}));
  }
}

}  // namespace
}  // namespace winnow::testing
