// The blocks that a step reports: those of the indexer, row by row, whatever else the batch holds.
#include "model/kept_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "model/load_decoder.h"
#include "ops/testing/backends.h"

namespace winnow {
namespace {

constexpr std::int32_t kBlockTokens = 16;
constexpr std::int32_t kNumBlocks = 64;

/// What the indexer says in each layer, every token.
class SelectionTrace final : public DecoderTrace {
 public:
  void on_blocks(const BlockSelectionView& view) override {
    layers[view.layer].assign(view.blocks.begin(), view.blocks.end());
  }
  std::map<int, std::vector<std::int32_t>> layers;
};

class KeptBlocksTest : public ::testing::TestWithParam<std::string> {
 protected:
  KeptBlocksTest() {
    write_random_checkpoint(folder_.path(), {});
    for (std::int32_t i = 0; i < kNumBlocks; ++i) rows_.push_back(BlockId{kNumBlocks - 1 - i});
  }

  LoadedModel load() const {
    return load_decoder(
        folder_.path(), GetParam(),
        {.max_num_batched_tokens = 512, .num_blocks = kNumBlocks, .num_threads = 2});
  }

  /// Appends `num_tokens` tokens of a sequence whose blocks begin at row `first_row`.
  void add(Batch& batch, std::int32_t first_row, std::int32_t position, std::int32_t num_tokens,
           std::vector<std::int32_t> logit_offsets) const {
    const auto first = static_cast<std::int32_t>(batch.tokens.size());
    for (std::int32_t i = 0; i < num_tokens; ++i) {
      batch.tokens.push_back((position + i) * 7 % 53 + first_row);
    }
    const auto count =
        static_cast<std::size_t>((position + num_tokens + kBlockTokens - 1) / kBlockTokens);
    batch.sequences.push_back(
        {.first_token = first,
         .num_tokens = num_tokens,
         .first_position = position,
         .block_table = std::span(rows_).subspan(static_cast<std::size_t>(first_row), count)});
    for (const std::int32_t offset : logit_offsets) batch.logit_rows.push_back(first + offset);
  }

  static std::vector<std::int32_t> run(Decoder& decoder, const Batch& batch) {
    std::vector<float> logits(batch.logit_rows.size() *
                              static_cast<std::size_t>(decoder.vocab_size()));
    decoder.run(batch, logits);
    const auto kept = decoder.selections();
    return {kept.begin(), kept.end()};
  }

  TemporaryFolder folder_;
  std::vector<BlockId> rows_;
};

TEST_P(KeptBlocksTest, AreThoseOfTheIndexerForEachRowAskedFor) {
  LoadedModel traced = load();
  LoadedModel plain = load();
  SelectionTrace trace;
  traced.decoder->set_trace(&trace);
  Batch batch;
  add(batch, 0, 0, 200, {150, 199});
  add(batch, 20, 0, 3, {0, 1, 2});
  add(batch, 30, 0, 90, {89});
  batch.selection_rows = {1, 2, 4, 5};
  const std::vector<std::int32_t> kept = run(*plain.decoder, batch);
  run(*traced.decoder, batch);

  const SelectionShape shape = plain.decoder->selection_shape();
  ASSERT_FALSE(shape.layers.empty());
  const auto width = static_cast<std::size_t>(shape.num_groups * shape.top_k);
  ASSERT_EQ(static_cast<std::int64_t>(kept.size()), 4 * shape.row_size());
  const std::int32_t* next = kept.data();
  for (const std::int32_t row : batch.selection_rows) {
    const auto token = static_cast<std::size_t>(batch.logit_rows[static_cast<std::size_t>(row)]);
    for (const std::int32_t layer : shape.layers) {
      const std::vector<std::int32_t>& all = trace.layers.at(layer);
      EXPECT_TRUE(std::equal(next, next + width, all.data() + token * width))
          << "row " << row << ", layer " << layer;
      next += width;
    }
  }
}

TEST_P(KeptBlocksTest, DoNotDependOnTheRestOfTheBatch) {
  LoadedModel model = load();
  const auto prefill = [&](std::int32_t row, std::int32_t num_tokens) {
    Batch batch;
    add(batch, row, 0, num_tokens, {});
    run(*model.decoder, batch);
  };
  prefill(0, 300);
  prefill(30, 77);
  Batch alone;
  add(alone, 0, 300, 1, {0});
  alone.selection_rows = {0};
  const std::vector<std::int32_t> expected = run(*model.decoder, alone);
  ASSERT_EQ(static_cast<std::int64_t>(expected.size()),
            model.decoder->selection_shape().row_size());
  Batch together;
  add(together, 30, 77, 1, {0});
  add(together, 0, 300, 1, {0});
  add(together, 40, 0, 40, {39});
  together.selection_rows = {1};
  // A device records such a step the second time, and replays it from the third on.
  for (int i = 0; i < 4; ++i) EXPECT_EQ(run(*model.decoder, together), expected) << i;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(run(*model.decoder, alone), expected) << i;
}

TEST_P(KeptBlocksTest, AreOfTheLastStepOnly) {
  LoadedModel model = load();
  Batch batch;
  add(batch, 0, 0, 20, {19});
  batch.selection_rows = {0};
  EXPECT_FALSE(run(*model.decoder, batch).empty());
  batch.selection_rows.clear();
  EXPECT_TRUE(run(*model.decoder, batch).empty());
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const ops::Backend& backend : ops::testing::all_backends()) names.push_back(backend.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(, KeptBlocksTest, ::testing::ValuesIn(backend_names()),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace winnow
