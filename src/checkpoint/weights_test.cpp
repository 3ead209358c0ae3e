// Loading: every spelling, and every way in which a checkpoint and its config can disagree.
#include "checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "formats/bf16.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path kGolden = WINNOW_SOURCE_DIR "/tests/golden";

struct Loaded {
  explicit Loaded(const std::filesystem::path& folder)
      : checkpoint(folder),
        config(read_model_config(folder)),
        weights(load_weights(checkpoint, config)) {}
  Checkpoint checkpoint;
  ModelConfig config;
  ModelWeights weights;
};

std::vector<float> rows_of(const WeightMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  dequantize_rows(matrix, 0, matrix.rows, values.data());
  return values;
}

// Largest |stored - original| over the largest |original|.
double error_of(const WeightMatrix& matrix, const RandomCheckpoint& options) {
  const std::vector<float> values = rows_of(matrix);
  double worst = 0, largest = 0;
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    for (std::int64_t c = 0; c < matrix.cols; ++c) {
      const double x = random_weight(options, matrix.name, r, c, matrix.cols);
      worst = std::max(worst, std::fabs(x - values[static_cast<std::size_t>(r * matrix.cols + c)]));
      largest = std::max(largest, std::fabs(x));
    }
  }
  return worst / largest;
}

double error_bound(QuantScheme scheme) {
  switch (scheme) {
    case QuantScheme::kF32:
      return 0;
    case QuantScheme::kBF16:
      return 1. / 256;
    case QuantScheme::kMxfp8:
      return 1. / 16;
    case QuantScheme::kNvfp4:
      return 1. / 6 + 1. / 16;  // half of the widest step, and the rounding of the scale
  }
  return 0;
}

class SpellingTest : public testing::TestWithParam<MatrixSpelling> {};

INSTANTIATE_TEST_SUITE_P(, SpellingTest,
                         testing::Values(MatrixSpelling::kF32, MatrixSpelling::kBF16,
                                         MatrixSpelling::kMxfp8, MatrixSpelling::kMxfp8PlainScale,
                                         MatrixSpelling::kNvfp4Packed,
                                         MatrixSpelling::kNvfp4ModelOpt));

TEST_P(SpellingTest, ReadsBackAsExpertsAndAsLinears) {
  const TemporaryFolder folder;
  RandomCheckpoint options;
  options.experts = GetParam();
  options.linears = GetParam();
  write_random_checkpoint(folder.path(), options);
  const Loaded loaded(folder.path());
  const auto& moe = std::get<MoeWeights>(loaded.weights.layers[1].mlp);
  for (const WeightMatrix* matrix :
       {&loaded.weights.layers[0].q, &loaded.weights.layers[2].o, &moe.experts[3].gate,
        &moe.experts[3].up, &moe.experts[0].down, &moe.shared.down,
        &std::get<GatedMlp>(loaded.weights.layers[0].mlp).up, &loaded.weights.layers[1].index->k}) {
    EXPECT_LE(error_of(*matrix, options), error_bound(matrix->scheme)) << matrix->name;
  }
  EXPECT_EQ(moe.router.scheme, QuantScheme::kF32);
  EXPECT_EQ(moe.router_bias.size(), 4U);
  EXPECT_EQ(loaded.weights.embed.scheme, QuantScheme::kBF16);
}

TEST_P(SpellingTest, AnyRowRangeAndAnyInstructionSetGiveTheSameBits) {
  const TemporaryFolder folder;
  RandomCheckpoint options;
  options.experts = GetParam();
  write_random_checkpoint(folder.path(), options);
  const Loaded loaded(folder.path());
  const WeightMatrix& matrix = std::get<MoeWeights>(loaded.weights.layers[1].mlp).experts[2].down;
  const std::vector<float> all = rows_of(matrix);
  for (const BulkCodecs* codecs : {&kScalarCodecs, kAvx2Codecs, kAvx512Codecs}) {
    if (codecs == nullptr) continue;
    if (codecs == kAvx2Codecs && !__builtin_cpu_supports("avx2")) continue;
    if (codecs == kAvx512Codecs && !__builtin_cpu_supports("avx512vbmi")) continue;
    std::vector<float> row(static_cast<std::size_t>(matrix.cols));
    for (std::int64_t r = 0; r < matrix.rows; ++r) {
      dequantize_rows(matrix, r, r + 1, row.data(), *codecs);
      EXPECT_EQ(std::memcmp(row.data(), all.data() + r * matrix.cols, row.size() * 4), 0) << r;
    }
  }
}

// cases.md C3: the published names with NVFP4 experts and MXFP8 elsewhere, mixed in one file.
TEST(LoadWeights, MixedPrecisionM31Layout) {
  const TemporaryFolder folder;
  RandomCheckpoint options = random_m31();
  options.num_shards = 3;
  options.with_vision = true;
  write_random_checkpoint(folder.path(), options);
  const Loaded loaded(folder.path());
  EXPECT_EQ(loaded.checkpoint.files().size(), 3U);
  const LayerWeights& layer = loaded.weights.layers[1];
  EXPECT_EQ(layer.q.scheme, QuantScheme::kMxfp8);
  EXPECT_EQ(layer.index->q.scheme, QuantScheme::kMxfp8);
  const auto& moe = std::get<MoeWeights>(layer.mlp);
  EXPECT_EQ(moe.experts[7].down.scheme, QuantScheme::kNvfp4);
  EXPECT_EQ(moe.shared.gate.scheme, QuantScheme::kMxfp8);
  EXPECT_EQ(moe.router.scheme, QuantScheme::kF32);
  EXPECT_EQ(loaded.weights.lm_head.scheme, QuantScheme::kBF16);
  EXPECT_EQ(loaded.config.default_cache_dtype(), CacheDType::kNvfp4);
  ASSERT_EQ(loaded.weights.ignored.size(), 3U);
}

// spec/model.md trap 19.
TEST(LoadWeights, GlobalScaleDividesAndScaleTwoMultiplies) {
  for (const MatrixSpelling spelling :
       {MatrixSpelling::kNvfp4Packed, MatrixSpelling::kNvfp4ModelOpt}) {
    const TemporaryFolder folder;
    RandomCheckpoint options;
    options.experts = spelling;
    write_random_checkpoint(folder.path(), options);
    const Loaded loaded(folder.path());
    const WeightMatrix& matrix = std::get<MoeWeights>(loaded.weights.layers[1].mlp).experts[0].gate;
    float stored = 0;
    const bool divides = spelling == MatrixSpelling::kNvfp4Packed;
    std::memcpy(
        &stored,
        loaded.checkpoint.view(matrix.name + (divides ? ".weight_global_scale" : ".weight_scale_2"))
            .data,
        4);
    EXPECT_EQ(matrix.global_scale, divides ? 1.F / stored : stored);
  }
}

TEST(LoadWeights, FlatNamesAndHuggingFaceConfig) {
  const TemporaryFolder folder;
  RandomCheckpoint options;
  options.flat_names = true;
  options.hugging_face_config = true;
  options.dense_under_moe_name = true;
  options.vectors_f32 = true;
  write_random_checkpoint(folder.path(), options);
  const Loaded loaded(folder.path());
  EXPECT_EQ(loaded.weights.layers[0].q.name, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(std::get<GatedMlp>(loaded.weights.layers[0].mlp).gate.name,
            "model.layers.0.block_sparse_moe.gate_proj");
}

TEST(LoadWeights, GoldenCheckpoints) {
  const Loaded nano(kGolden / "nano-text");
  EXPECT_EQ(nano.weights.layers.size(), 5U);
  EXPECT_EQ(nano.weights.embed.scheme, QuantScheme::kF32);
  EXPECT_TRUE(std::holds_alternative<GatedMlp>(nano.weights.layers[0].mlp));
  EXPECT_FALSE(nano.weights.layers[0].index.has_value());
  EXPECT_TRUE(nano.weights.layers[4].index.has_value());
  EXPECT_FALSE(nano.weights.ignored.empty());

  const Loaded heads(kGolden / "m3-heads");
  EXPECT_EQ(heads.config.block_tokens, 128);
  EXPECT_EQ(heads.config.top_k_blocks, 16);
  EXPECT_EQ(std::get<MoeWeights>(heads.weights.layers[2].mlp).router.scheme, QuantScheme::kBF16);
}

// --- what can be wrong -------------------------------------------------------------------------

// Rewrites model.safetensors of a folder after `change` has edited the list of tensors.
struct EditableTensor {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

template <typename Change>
void edit_tensors(const std::filesystem::path& folder, Change change) {
  std::vector<EditableTensor> tensors;
  {
    const SafetensorsFile file(folder / "model.safetensors");
    for (const StoredTensor& tensor : file.tensors()) {
      const TensorView view = file.view(tensor);
      tensors.push_back(
          {tensor.name, tensor.dtype, tensor.shape, {view.data, view.data + tensor.num_bytes}});
    }
  }
  change(tensors);
  std::vector<SafetensorsWriter::Tensor> plan;
  for (const EditableTensor& tensor : tensors)
    plan.push_back({tensor.name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(folder / "model.safetensors", plan);
  for (const EditableTensor& tensor : tensors) writer.append(tensor.name, tensor.data);
  writer.finish();
}

class BrokenCheckpoint : public testing::Test {
 protected:
  BrokenCheckpoint() {
    options_ = random_m31();
    write_random_checkpoint(folder_.path(), options_);
  }

  template <typename Change>
  void edit(std::string_view name, Change change) {
    edit_tensors(folder_.path(), [&](std::vector<EditableTensor>& tensors) {
      for (EditableTensor& tensor : tensors) {
        if (tensor.name == name) {
          change(tensor);
          return;
        }
      }
      FAIL() << name;
    });
  }

  void erase(std::string_view name) {
    edit_tensors(folder_.path(), [&](std::vector<EditableTensor>& tensors) {
      EXPECT_EQ(std::erase_if(tensors, [&](const auto& tensor) { return tensor.name == name; }),
                1U);
    });
  }

  void set_scalar(std::string_view name, float value) {
    edit(name, [&](EditableTensor& tensor) { std::memcpy(tensor.data.data(), &value, 4); });
  }

  std::vector<std::string> problems() {
    ProblemList problems;
    const Checkpoint checkpoint(folder_.path(), problems);
    load_weights(checkpoint, read_model_config(folder_.path()), {}, problems);
    return {problems.all().begin(), problems.all().end()};
  }

  TemporaryFolder folder_;
  RandomCheckpoint options_;
  const std::string expert_ = "language_model.model.layers.2.block_sparse_moe.experts.5.w3";
  const std::string q_ = "language_model.model.layers.1.self_attn.q_proj";
};

TEST_F(BrokenCheckpoint, NothingWrongAtFirst) { EXPECT_THAT(problems(), testing::IsEmpty()); }

TEST_F(BrokenCheckpoint, MissingTensorIsNamedWithShapeAndMeaning) {
  erase("language_model.model.layers.2.self_attn.index_k_norm.weight");
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr("model.safetensors"),
                                HasSubstr("layers.2.self_attn.index_k_norm.weight: missing"),
                                HasSubstr("[128] (index_head_dim)"))));
}

TEST_F(BrokenCheckpoint, SurplusTensorIsNamed) {
  edit_tensors(folder_.path(), [](std::vector<EditableTensor>& tensors) {
    tensors.push_back({"language_model.model.layers.0.self_attn.index_v_proj.weight",
                       DType::kBF16,
                       {2, 3},
                       std::vector<std::byte>(12)});
  });
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr("model.safetensors"),
                                            HasSubstr("index_v_proj.weight BF16 [2, 3]"),
                                            HasSubstr("not part of the model"))));
}

TEST_F(BrokenCheckpoint, WrongShapeIsNamedWithBothShapes) {
  edit("language_model.model.layers.1.self_attn.q_norm.weight", [](EditableTensor& tensor) {
    tensor.shape = {64};
    tensor.data.resize(128);
  });
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr("q_norm.weight: shape [64], expected [128] (head_dim)"),
                                HasSubstr("config.json"))));
}

TEST_F(BrokenCheckpoint, TransposedMatrix) {
  edit(q_ + ".weight", [](EditableTensor& tensor) { std::swap(tensor.shape[0], tensor.shape[1]); });
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr("shape [128, 512], expected [512, 128]"),
                                            HasSubstr("head_dim × hidden_size"))));
}

// cases.md C2: a scale missing from the checkpoint.
TEST_F(BrokenCheckpoint, MissingScalesNameLayerExpertAndTensor) {
  erase(expert_ + ".weight_scale");
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr(expert_), HasSubstr("without its scales"))));
}

TEST_F(BrokenCheckpoint, MissingGlobalScale) {
  erase(expert_ + ".weight_global_scale");
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr(expert_), HasSubstr("global scale missing"))));
}

TEST_F(BrokenCheckpoint, MissingMxfp8Scale) {
  erase(q_ + ".weight_scale_inv");
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr(q_ + ".weight"), HasSubstr("without its scale"),
                                HasSubstr("weight_scale_inv"))));
}

// cases.md C2: one scale set to 0, NaN, infinity, a subnormal (1e-50 as a float is 0).
TEST_F(BrokenCheckpoint, UselessGlobalScales) {
  for (const float value :
       {0.F, -1.F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        1e-40F, static_cast<float>(1e-50), 3e38F}) {
    set_scalar(expert_ + ".weight_global_scale", value);
    EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr(expert_ + ".weight_global_scale"),
                                              HasSubstr("expected a positive normal float"))))
        << value;
  }
}

TEST_F(BrokenCheckpoint, NaNAndNegativeBlockScales) {
  for (const auto& [byte, word] :
       {std::pair{0x7F, "NaN"}, std::pair{0xFF, "NaN"}, std::pair{0xB8, "negative"}}) {
    edit(expert_ + ".weight_scale", [&, value = byte](EditableTensor& tensor) {
      tensor.data[19] = static_cast<std::byte>(value);  // 8 scales a row
    });
    EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr(expert_ + ".weight_scale"),
                                              HasSubstr("[2, 3]"), HasSubstr(word))));
  }
}

TEST_F(BrokenCheckpoint, ZeroBlockScaleIsAllowed) {
  edit(expert_ + ".weight_scale", [](EditableTensor& tensor) { tensor.data[0] = std::byte{0}; });
  EXPECT_THAT(problems(), testing::IsEmpty());
}

TEST_F(BrokenCheckpoint, NaNExponentScale) {
  edit(q_ + ".weight_scale_inv", [](EditableTensor& tensor) { tensor.data[6] = std::byte{255}; });
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr(q_ + ".weight_scale_inv"),
                                            HasSubstr("scale [1, 2] is NaN"))));
}

TEST_F(BrokenCheckpoint, FloatBlockScalesAreNotTakenForExponents) {
  edit(q_ + ".weight_scale_inv", [](EditableTensor& tensor) {
    tensor.dtype = DType::kF32;
    tensor.data.resize(tensor.data.size() * 4);
  });
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr("dtype F32"), HasSubstr("E8M0"))));
}

TEST_F(BrokenCheckpoint, NonFiniteNorm) {
  edit("language_model.model.norm.weight", [](EditableTensor& tensor) {
    const std::uint16_t nan = 0x7FC0;
    std::memcpy(tensor.data.data() + 6, &nan, 2);
  });
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr("model.norm.weight"), HasSubstr("element 3"))));
}

TEST_F(BrokenCheckpoint, HalfPrecisionWeightsAreRefused) {
  edit("language_model.lm_head.weight", [](EditableTensor& tensor) { tensor.dtype = DType::kF16; });
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr("lm_head.weight: dtype F16"), HasSubstr("BF16"))));
}

TEST_F(BrokenCheckpoint, AllProblemsAreListedAndTheErrorShowsTen) {
  edit_tensors(folder_.path(), [](std::vector<EditableTensor>& tensors) {
    std::erase_if(tensors, [](const auto& tensor) {
      return tensor.name.find("experts.3.") != std::string::npos;
    });
  });
  EXPECT_EQ(problems().size(), 6U);
  edit_tensors(folder_.path(), [](std::vector<EditableTensor>& tensors) {
    std::erase_if(tensors, [](const auto& tensor) {
      return tensor.name.find(".experts.") != std::string::npos;
    });
  });
  try {
    const Loaded loaded(folder_.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidCheckpoint);
    EXPECT_THAT(error.text(), AllOf(HasSubstr("48 problems"), HasSubstr("and 38 more")));
  }
}

TEST_F(BrokenCheckpoint, ConfigOfAnotherCheckpoint) {
  RandomCheckpoint other = options_;
  other.hidden_size = 256;
  const TemporaryFolder elsewhere;
  write_random_checkpoint(elsewhere.path(), other);
  std::filesystem::copy_file(elsewhere.path() / "config.json", folder_.path() / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THROW(Loaded{folder_.path()}, Error);
}

TEST(LoadWeights, MisalignedDataIsCopiedToAlignedMemory) {
  const TemporaryFolder folder;
  RandomCheckpoint options;
  write_random_checkpoint(folder.path(), options);
  // The same file with a header that is one byte longer.
  const auto path = folder.path() / "model.safetensors";
  const auto size = std::filesystem::file_size(path);
  std::string text(size, '\0');
  std::ifstream(path, std::ios::binary).read(text.data(), static_cast<std::streamsize>(size));
  std::uint64_t header = 0;
  std::memcpy(&header, text.data(), 8);
  const std::vector<float> expected = rows_of(Loaded(folder.path()).weights.layers[1].q);
  text.insert(8 + header, " ");
  ++header;
  std::memcpy(text.data(), &header, 8);
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));

  const Loaded loaded(folder.path());
  const WeightMatrix& q = loaded.weights.layers[1].q;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(q.data.data) % 2, 0U);
  EXPECT_EQ(rows_of(q), expected);
  drop_pages(loaded.checkpoint, q);
  EXPECT_EQ(rows_of(q), expected);
}

TEST(LoadWeights, DroppedPagesReadAgain) {
  const TemporaryFolder folder;
  write_random_checkpoint(folder.path(), random_m31());
  const Loaded loaded(folder.path());
  const WeightMatrix& embed = loaded.weights.embed;
  const std::vector<float> before = rows_of(embed);
  drop_pages(loaded.checkpoint, embed);
  loaded.checkpoint.will_need(embed.data);
  EXPECT_EQ(rows_of(embed), before);
}

}  // namespace
}  // namespace winnow
