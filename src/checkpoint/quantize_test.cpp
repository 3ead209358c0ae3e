#include "checkpoint/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/folder_swap.h"
#include "checkpoint/json_file.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "checkpoint/weights.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class QuantizeTest : public testing::Test {
 protected:
  QuantizeTest() {
    options_ = random_m31();
    options_.experts = options_.linears = MatrixSpelling::kBF16;
    options_.with_vision = true;
    write_random_checkpoint(input(), options_);
    std::ofstream(input() / "tokenizer.json") << "{}";
    std::ofstream(input() / "chat_template.jinja") << "x";
    std::ofstream(input() / "pytorch_model.bin") << "x";
  }

  std::filesystem::path input() const { return folder_.path() / "in"; }
  std::filesystem::path output() const { return folder_.path() / "out"; }
  // Names in the folder beside input and output: nothing temporary may stay.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  std::string error_of(const QuantizeOptions& options = {}) const {
    try {
      quantize_checkpoint(input(), output(), options);
    } catch (const Error& error) {
      return error.text();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  RandomCheckpoint options_;
};

double largest_of(const std::vector<float>& values) {
  double largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(double{value}));
  return largest;
}

void expect_near(const WeightMatrix& expected, const WeightMatrix& actual, double tolerance) {
  ASSERT_EQ(expected.rows, actual.rows);
  ASSERT_EQ(expected.cols, actual.cols);
  std::vector<float> a(static_cast<std::size_t>(expected.rows * expected.cols)), b(a.size());
  dequantize_rows(expected, 0, expected.rows, a.data());
  dequantize_rows(actual, 0, actual.rows, b.data());
  const double bound = tolerance * largest_of(a);
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], bound) << actual.name;
}

TEST_F(QuantizeTest, WritesTheM31Layout) {
  std::int64_t last = 0;
  std::int64_t total = 0;
  const QuantizeResult result = quantize_checkpoint(
      input(), output(), {.progress = [&](std::int64_t done, std::int64_t all, std::string_view) {
        EXPECT_GE(done, last);
        last = done;
        total = all;
      }});
  EXPECT_EQ(last, total);
  EXPECT_EQ(result.num_shards, 1);
  EXPECT_LT(result.bytes_out, result.bytes_in);
  EXPECT_THAT(names(), testing::UnorderedElementsAre("in", "out"));
  EXPECT_TRUE(std::filesystem::exists(output() / "tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(output() / "chat_template.jinja"));
  EXPECT_FALSE(std::filesystem::exists(output() / "pytorch_model.bin"));

  const Checkpoint source(input());
  const Checkpoint written(output());
  const ModelConfig config = read_model_config(output());
  EXPECT_EQ(config.quantization.method, "mxfp8");
  EXPECT_EQ(config.default_cache_dtype(), CacheDType::kNvfp4);
  const ModelWeights before = load_weights(source, read_model_config(input()));
  const ModelWeights after = load_weights(written, config);
  ASSERT_EQ(before.layers.size(), after.layers.size());
  for (std::size_t i = 0; i < after.layers.size(); ++i) {
    const LayerWeights& a = before.layers[i];
    const LayerWeights& b = after.layers[i];
    EXPECT_EQ(a.input_norm, b.input_norm);
    EXPECT_EQ(b.q.scheme, QuantScheme::kMxfp8);
    expect_near(a.q, b.q, 1. / 16);
    expect_near(a.index->k, b.index->k, 1. / 16);
    if (const auto* dense = std::get_if<GatedMlp>(&b.mlp)) {
      EXPECT_EQ(dense->down.scheme, QuantScheme::kMxfp8);
      continue;
    }
    const auto& moe_before = std::get<MoeWeights>(a.mlp);
    const auto& moe = std::get<MoeWeights>(b.mlp);
    EXPECT_EQ(moe.router.scheme, QuantScheme::kF32);
    expect_near(moe_before.router, moe.router, 0);
    EXPECT_EQ(moe_before.router_bias, moe.router_bias);
    EXPECT_EQ(moe.shared.up.scheme, QuantScheme::kMxfp8);
    for (std::size_t e = 0; e < moe.experts.size(); ++e) {
      EXPECT_EQ(moe.experts[e].down.scheme, QuantScheme::kNvfp4);
      // w1 and w3 share their global scale so that a fused product has one.
      EXPECT_EQ(moe.experts[e].gate.global_scale, moe.experts[e].up.global_scale);
      expect_near(moe_before.experts[e].gate, moe.experts[e].gate, 1. / 5);
      expect_near(moe_before.experts[e].down, moe.experts[e].down, 1. / 5);
    }
  }
  expect_near(before.embed, after.embed, 0);
  expect_near(before.lm_head, after.lm_head, 0);
  EXPECT_EQ(after.ignored.size(), 3U);
  const std::string vision = "vision_tower.vision_model.pre_layrnorm.weight";
  EXPECT_EQ(std::memcmp(source.view(vision).data, written.view(vision).data, 16), 0);
}

TEST_F(QuantizeTest, ShardsStayBelowTheLimit) {
  const QuantizeResult result =
      quantize_checkpoint(input(), output(), {.max_shard_bytes = 100'000, .progress = {}});
  EXPECT_GT(result.num_shards, 3);
  const Checkpoint written(output());
  EXPECT_EQ(static_cast<int>(written.files().size()), result.num_shards);
  for (const SafetensorsFile& file : written.files()) {
    std::int64_t bytes = 0;
    for (const StoredTensor& tensor : file.tensors()) bytes += tensor.num_bytes;
    EXPECT_LE(bytes, 100'000);
  }
  load_weights(written, read_model_config(output()));
}

TEST_F(QuantizeTest, GoldenCheckpointInTransformersSpelling) {
  const std::filesystem::path golden = WINNOW_SOURCE_DIR "/tests/golden/nano-text";
  quantize_checkpoint(golden, output());
  const Checkpoint written(output());
  const ModelWeights weights = load_weights(written, read_model_config(output()));
  EXPECT_EQ(std::get<GatedMlp>(weights.layers[0].mlp).gate.name,
            "language_model.model.layers.0.mlp.gate_proj");
  EXPECT_EQ(weights.embed.scheme, QuantScheme::kBF16);
  EXPECT_FALSE(std::filesystem::exists(output() / "golden.safetensors"));
}

// MXFP8 values are representable, so a second pass may choose another scale but no other value.
TEST_F(QuantizeTest, QuantisingTwiceKeepsMxfp8Values) {
  quantize_checkpoint(input(), output());
  const auto again = folder_.path() / "again";
  quantize_checkpoint(output(), again);
  const Checkpoint first(output());
  const Checkpoint second(again);
  const ModelWeights a = load_weights(first, read_model_config(output()));
  const ModelWeights b = load_weights(second, read_model_config(again));
  expect_near(a.layers[1].q, b.layers[1].q, 0);
}

TEST_F(QuantizeTest, RefusesANonEmptyFolderWithoutForce) {
  std::filesystem::create_directories(output());
  EXPECT_EQ(error_of(), "no error");  // empty
  EXPECT_THAT(error_of(), AllOf(HasSubstr("is not empty"), HasSubstr("--force")));
  EXPECT_EQ(error_of({.force = true, .progress = {}}), "no error");
  EXPECT_THAT(names(), testing::UnorderedElementsAre("in", "out"));
}

TEST_F(QuantizeTest, ForceNeverDeletesWhatIsNoCheckpoint) {
  std::filesystem::create_directories(output());
  std::ofstream(output() / "thesis.txt") << "x";
  EXPECT_THAT(error_of({.force = true, .progress = {}}), HasSubstr("no checkpoint"));
  EXPECT_TRUE(std::filesystem::exists(output() / "thesis.txt"));
}

TEST_F(QuantizeTest, RefusesToWriteOntoItsInput) {
  EXPECT_THROW(quantize_checkpoint(input(), input(), {.force = true, .progress = {}}), Error);
  EXPECT_THROW(quantize_checkpoint(input(), input() / "..", {.force = true, .progress = {}}),
               Error);
}

TEST_F(QuantizeTest, NonFiniteWeightIsNamedAndNothingIsLeft) {
  options_.experts = MatrixSpelling::kF32;
  write_random_checkpoint(input(), options_);
  const std::string name = "language_model.model.layers.2.block_sparse_moe.experts.3.w2.weight";
  std::int64_t offset = 0;
  {
    const SafetensorsFile file(input() / "model.safetensors");
    offset = file.find(name)->offset + (5 * 64 + 7) * 4;
  }
  std::fstream file(input() / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  const float nan = std::nanf("");
  file.seekp(offset);
  file.write(reinterpret_cast<const char*>(&nan), 4);
  file.close();
  EXPECT_THAT(error_of(), AllOf(HasSubstr("experts.3.w2"), HasSubstr("[5, 7]"), HasSubstr("nan")));
  EXPECT_THAT(names(), testing::ElementsAre("in"));
}

TEST_F(QuantizeTest, WidthThatTheGroupsDoNotDivide) {
  options_.dense_intermediate = 80;
  write_random_checkpoint(input(), options_);
  EXPECT_THAT(error_of(), AllOf(HasSubstr("down_proj"), HasSubstr("80 inputs"),
                                HasSubstr("multiple of 32"), HasSubstr("MXFP8")));
}

TEST_F(QuantizeTest, BrokenInputIsReported) {
  std::filesystem::resize_file(input() / "model.safetensors", 1000);
  EXPECT_THAT(error_of(), HasSubstr("truncated"));
  EXPECT_THAT(names(), testing::ElementsAre("in"));
}

}  // namespace
}  // namespace winnow
