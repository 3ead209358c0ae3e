// Streams captured for a drafter: what they are, and that capturing them changes nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/error.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "model/load_decoder.h"
#include "ops/testing/compare_bits.h"

namespace winnow {
namespace {

/// Outputs of every layer.
class HiddenTrace final : public DecoderTrace {
 public:
  bool wants_blocks() const override { return false; }
  void on_hidden(int layer, const ops::BatchView& /*batch*/,
                 std::span<const float> hidden) override {
    hidden_[layer].assign(hidden.begin(), hidden.end());
  }
  const std::vector<float>& hidden(int layer) const { return hidden_.at(layer); }

 private:
  std::map<int, std::vector<float>> hidden_;
};

class CaptureTest : public ::testing::TestWithParam<const char*> {
 protected:
  CaptureTest() {
    write_random_checkpoint(folder_.path(), {});
    for (std::int32_t i = 0; i < 8; ++i) blocks_.push_back(BlockId{7 - i});
  }

  LoadedModel load(std::vector<std::int32_t> captured_layers) const {
    return load_decoder(folder_.path(), GetParam(),
                        {.captured_layers = std::move(captured_layers),
                         .max_num_batched_tokens = 64,
                         .num_blocks = 8,
                         .num_threads = 2});
  }

  /// A prompt of which the last row is wanted, rows that verify drafts, and one without logits.
  Batch batch() const {
    Batch batch;
    for (TokenId t = 0; t < 30; ++t) batch.tokens.push_back(t * 5 % 96);
    const std::span<const BlockId> all(blocks_);
    batch.sequences = {
        {.first_token = 0, .num_tokens = 20, .first_position = 0, .block_table = all.first(2)},
        {.first_token = 20, .num_tokens = 8, .first_position = 0, .block_table = all.subspan(2, 1)},
        {.first_token = 28, .num_tokens = 2, .first_position = 0, .block_table = all.subspan(3, 1)},
    };
    batch.logit_rows = {19, 20, 21, 27};
    return batch;
  }

  static std::vector<float> run(Decoder& decoder, const Batch& batch) {
    std::vector<float> logits(batch.logit_rows.size() * 96);
    decoder.run(batch, logits);
    return logits;
  }

  TemporaryFolder folder_;
  std::vector<BlockId> blocks_;
};

INSTANTIATE_TEST_SUITE_P(, CaptureTest, ::testing::Values("scalar", "cpu"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(CaptureTest, IsTheOutputOfTheLayersForEveryRow) {
  LoadedModel traced = load({});
  HiddenTrace trace;
  traced.decoder->set_trace(&trace);
  run(*traced.decoder, batch());
  EXPECT_TRUE(traced.decoder->captured().empty());
  for (const std::vector<std::int32_t>& layers :
       {std::vector<std::int32_t>{0}, {1, 2}, {0, 1, 2}}) {
    LoadedModel capturing = load(layers);
    run(*capturing.decoder, batch());
    ASSERT_EQ(capturing.decoder->captured().size(), layers.size());
    for (std::size_t i = 0; i < layers.size(); ++i) {
      EXPECT_TRUE(ops::testing::bits_equal(trace.hidden(layers[i]),
                                           {capturing.decoder->captured()[i], 30 * 64}, {30, 64}));
    }
  }
}

TEST_P(CaptureTest, ChangesNeitherLogitsNorCache) {
  LoadedModel plain = load({});
  const auto expected = run(*plain.decoder, batch());
  const auto pool_of = [](const Decoder& decoder) {
    return std::span<const std::byte>(
        decoder.cache_view().pool,
        static_cast<std::size_t>(8 * decoder.cache_layout().row_bytes()));
  };
  for (const std::vector<std::int32_t>& layers : {std::vector<std::int32_t>{0, 1}, {0, 2}}) {
    LoadedModel capturing = load(layers);
    EXPECT_TRUE(ops::testing::bits_equal(expected, run(*capturing.decoder, batch()), {4, 96}));
    EXPECT_TRUE(ops::testing::bits_equal(pool_of(*plain.decoder), pool_of(*capturing.decoder),
                                         {8, plain.decoder->cache_layout().row_bytes()}));
  }
}

TEST_P(CaptureTest, LayersThatAreNotThereAreRefused) {
  EXPECT_THROW(load({3}), Error);
  EXPECT_THROW(load({-1}), Error);
  EXPECT_THROW(load({1, 0}), Error);
  EXPECT_THROW(load({1, 1}), Error);
}

}  // namespace
}  // namespace winnow
