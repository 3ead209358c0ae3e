// Files of captured texts: what the streams are, whatever the steps, and what is refused.
#include "model/captured_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "formats/bf16.h"
#include "model/load_decoder.h"

namespace winnow {
namespace {

constexpr std::int32_t kVocab = 96;
constexpr std::int64_t kHidden = 64;
const std::vector<std::int32_t> kLayers = {0, 2};

class CapturedTextTest : public ::testing::TestWithParam<const char*> {
 protected:
  CapturedTextTest() {
    write_random_checkpoint(folder_.path(), {});
    std::int32_t next = 1;
    for (const std::int32_t length : {20, 1, 40, 0, 16, 33, 3}) {
      CapturedText& text = texts_.emplace_back();
      for (std::int32_t i = 0; i < length; ++i) text.tokens.push_back(next++ * 29 % kVocab);
      text.num_prompt = length / 2;
    }
  }

  LoadedModel load() const {
    return load_decoder(
        folder_.path(), GetParam(),
        {.captured_layers = kLayers, .max_num_batched_tokens = 64, .num_threads = 2});
  }

  /// Streams of one layer as a run of each text alone gives them.
  std::vector<Bf16> expected(std::size_t layer) const {
    const LoadedModel model = load();
    model.decoder->allocate_pool(4);
    const std::vector<BlockId> blocks = {BlockId{2}, BlockId{0}, BlockId{3}, BlockId{1}};
    std::vector<Bf16> out;
    for (const CapturedText& text : texts_) {
      if (text.tokens.empty()) continue;
      Batch batch{.tokens = text.tokens, .sequences = {}, .logit_rows = {}};
      batch.sequences.push_back(
          {.num_tokens = static_cast<std::int32_t>(text.tokens.size()), .block_table = blocks});
      model.decoder->run(batch, {});
      const float* const values = model.decoder->captured()[layer];
      std::transform(values, values + std::ssize(text.tokens) * kHidden, std::back_inserter(out),
                     encode_bf16);
    }
    return out;
  }

  TemporaryFolder folder_;
  std::vector<CapturedText> texts_;
};

INSTANTIATE_TEST_SUITE_P(, CapturedTextTest, ::testing::Values("scalar", "cpu"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(CapturedTextTest, StreamsAreThoseOfEachTextAloneWhateverTheStep) {
  const auto path = folder_.path() / "streams.safetensors";
  for (const std::int32_t step_tokens : {7, 40, 64}) {
    const LoadedModel model = load();
    write_streams(*model.decoder, kLayers, texts_, step_tokens, path);
    const SafetensorsFile file(path);
    for (std::size_t i = 0; i < kLayers.size(); ++i) {
      const TensorView view = file.view(i == 0 ? "streams.0" : "streams.2");
      const std::vector<Bf16> wanted = expected(i);
      ASSERT_EQ(view.dtype, DType::kBF16);
      ASSERT_EQ(view.shape, (std::vector<std::int64_t>{113, kHidden}));
      EXPECT_EQ(std::memcmp(view.data, wanted.data(), wanted.size() * sizeof(Bf16)), 0)
          << step_tokens << " " << i;
    }
  }
}

TEST_P(CapturedTextTest, TextsComeBackFromBothKindsOfFile) {
  const auto path = folder_.path() / "texts.safetensors";
  const auto check = [&] {
    const std::vector<CapturedText> read = read_texts(path, kVocab);
    ASSERT_EQ(read.size(), texts_.size());
    for (std::size_t i = 0; i < read.size(); ++i) {
      EXPECT_EQ(read[i].tokens, texts_[i].tokens);
      EXPECT_EQ(read[i].num_prompt, texts_[i].num_prompt);
    }
  };
  write_texts(texts_, path);
  check();
  const LoadedModel model = load();
  write_streams(*model.decoder, kLayers, texts_, 64, path);
  check();
  EXPECT_THROW(read_texts(path, kVocab / 2), Error);
}

TEST(CapturedTextFile, WhatDoesNotFitIsRefused) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "bad.safetensors";
  const auto read = [&](const std::vector<TokenId>& tokens, const std::vector<std::int64_t>& starts,
                        const std::vector<std::int32_t>& num_prompt) {
    SafetensorsWriter writer(path, {{"tokens", DType::kI32, {std::ssize(tokens)}},
                                    {"starts", DType::kI64, {std::ssize(starts)}},
                                    {"num_prompt", DType::kI32, {std::ssize(num_prompt)}}});
    writer.append("tokens", std::as_bytes(std::span(tokens)));
    writer.append("starts", std::as_bytes(std::span(starts)));
    writer.append("num_prompt", std::as_bytes(std::span(num_prompt)));
    writer.finish();
    return read_texts(path, kVocab).size();
  };
  EXPECT_EQ(read({1, 2, 3}, {0, 2, 3}, {1, 1}), 2U);
  EXPECT_EQ(read({}, {0}, {}), 0U);
  EXPECT_THROW(read({1, 2, 3}, {0, 2, 3}, {1}), Error);
  EXPECT_THROW(read({1, 2, 3}, {0, 2}, {1}), Error);
  EXPECT_THROW(read({1, 2, 3}, {1, 2, 3}, {1, 1}), Error);
  EXPECT_THROW(read({1, 2, 3}, {0, 4, 3}, {1, 0}), Error);
  EXPECT_THROW(read({1, 2, 3}, {0, 2, -1, 3}, {1, 0, 0}), Error);
  EXPECT_THROW(read({1, 2, 3}, {0, 2, 3}, {3, 1}), Error);
  EXPECT_THROW(read({1, 2, 3}, {0, 2, 3}, {-1, 1}), Error);
  EXPECT_THROW(read({1, -2, 3}, {0, 2, 3}, {1, 1}), Error);
  EXPECT_THROW(read({}, {}, {}), Error);
  EXPECT_THROW(read_texts(folder.path() / "absent.safetensors", kVocab), Error);
}

}  // namespace
}  // namespace winnow
