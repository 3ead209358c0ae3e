// PEFT's own folders are read; every class of broken or unknown adapter is refused with a message
// that names it; and any cut or changed byte is refused or read, never followed out of bounds.
#include "checkpoint/lora_adapter.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/lora_config.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/testing/random_adapter.h"
#include "checkpoint/testing/temporary_folder.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kGolden = std::filesystem::path(WINNOW_SOURCE_DIR) / "tests/golden";
constexpr std::int32_t kMaxRank = 64;

struct Pair {
  std::string module;
  std::int64_t rank, inputs, outputs;
};

/// An adapter folder that can be spoiled before it is read.
class Folder {
 public:
  Folder() {
    config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"bias", "none"}};
    add({"base_model.model.model.layers.0.self_attn.q_proj", 2, 8, 12});
  }

  void add(const Pair& pair) {
    tensors.push_back({pair.module + ".lora_A.weight", DType::kF32, {pair.rank, pair.inputs}});
    tensors.push_back({pair.module + ".lora_B.weight", DType::kF32, {pair.outputs, pair.rank}});
  }
  void only(const Pair& pair) {
    tensors.clear();
    add(pair);
  }

  /// Elements 1, 2, 3, … of each tensor, or what `fill` makes of them.
  LoraAdapter read(
      const std::function<float(const std::string&, std::int64_t)>& fill =
          [](const std::string&, std::int64_t i) { return static_cast<float>(i + 1); },
      std::int32_t max_rank = kMaxRank) const {
    std::ofstream(folder.path() / "adapter_config.json") << config.dump();
    SafetensorsWriter writer(folder.path() / "adapter_model.safetensors", tensors);
    for (const SafetensorsWriter::Tensor& tensor : tensors) {
      std::int64_t count = 1;
      for (const std::int64_t extent : tensor.shape) count *= extent;
      std::vector<std::byte> bytes(static_cast<std::size_t>(count * dtype_bytes(tensor.dtype)));
      for (std::int64_t i = 0; tensor.dtype == DType::kF32 && i < count; ++i) {
        const float value = fill(tensor.name, i);
        std::memcpy(bytes.data() + i * 4, &value, 4);
      }
      writer.append(tensor.name, bytes);
    }
    writer.finish();
    return LoraAdapter(folder.path(), smallest_lora_target(), max_rank);
  }

  std::string refusal() const {
    try {
      (void)read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidCheckpoint) << error.text();
      return error.text();
    }
    return "accepted";
  }

  json config;
  std::vector<SafetensorsWriter::Tensor> tensors;
  TemporaryFolder folder;
};

std::vector<float> floats_of(const LoraMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  std::memcpy(values.data(), matrix.data.data(), matrix.data.size());
  return values;
}

TEST(LoraAdapter, ReadsFoldersThatPeftWrote) {
  const ModelConfig config = read_model_config(kGolden / "nano-text");
  const LoraAdapter attention(kGolden / "nano-lora/attention", config, kMaxRank);
  EXPECT_EQ(attention.pairs().size(), 5U * 4U + 4U * 2U);
  EXPECT_EQ(attention.rank(), 6);  // rank_pattern's o_proj
  for (const LoraPair& pair : attention.pairs()) {
    const LoraTarget& target = pair.target;
    const bool is_pattern_q =
        target.projection == LoraProjection::kQ && (target.layer == 1 || target.layer == 2);
    const double rank = target.projection == LoraProjection::kOutput ? 6 : is_pattern_q ? 3 : 4;
    const double alpha = target.projection == LoraProjection::kV        ? 2
                         : target.projection == LoraProjection::kIndexK ? 4
                                                                        : 8;
    EXPECT_EQ(pair.a.rows, rank);
    EXPECT_EQ(pair.scale, static_cast<float>(alpha / rank));
    EXPECT_EQ(attention.read(pair.a).scheme, QuantScheme::kBF16);
  }
  const LoraAdapter experts(kGolden / "nano-lora/experts", config, kMaxRank);
  // Dense: gate_up, down. Each MoE layer: the same of the shared expert and of eight experts.
  EXPECT_EQ(experts.pairs().size(), 2U + 4U * 2U * 9U);
  EXPECT_EQ(experts.pairs().front().scale, static_cast<float>(3.0 / std::sqrt(2.0)));
  EXPECT_NE(experts.fingerprint(), attention.fingerprint());
}

// Fault G1: A has the expert slowest, B has it fastest.
TEST(LoraAdapter, StackedExpertsAreTakenApart) {
  Folder folder;
  folder.only({"base_model.model.model.language_model.layers.1.mlp.experts", 4, 6, 8});
  const LoraAdapter down = folder.read();
  ASSERT_EQ(down.pairs().size(), 2U);
  for (std::size_t e = 0; e < 2; ++e) {
    const LoraPair& pair = down.pairs()[e];
    EXPECT_EQ(pair.target, (LoraTarget{.layer = 1,
                                       .block = LoraBlock::kExpert,
                                       .expert = static_cast<std::int32_t>(e),
                                       .projection = LoraProjection::kDown}));
    std::vector<float> a;
    for (int i = 0; i < 12; ++i) a.push_back(static_cast<float>(1 + i + 12 * static_cast<int>(e)));
    EXPECT_EQ(floats_of(down.read(pair.a)), a);
    std::vector<float> b;
    for (int i = 0; i < 16; ++i) b.push_back(static_cast<float>(1 + 2 * i + static_cast<int>(e)));
    EXPECT_EQ(floats_of(down.read(pair.b)), b);
  }
  folder.only({"base_model.model.model.language_model.layers.1.mlp.experts.base_layer", 4, 8, 12});
  EXPECT_EQ(folder.read().pairs()[1].target.projection, LoraProjection::kGateUp);
}

TEST(LoraAdapter, EverySpellingOfAModuleIsFound) {
  const struct {
    const char* module;
    std::int64_t inputs, outputs;
    LoraTarget target;
  } cases[] = {
      {"base_model.model.language_model.model.layers.1.self_attn.index_q_proj",
       8,
       4,
       {1, LoraBlock::kAttention, 0, LoraProjection::kIndexQ}},
      {"base_model.model.model.language_model.layers.1.self_attn.indexer.k_proj",
       8,
       4,
       {1, LoraBlock::kAttention, 0, LoraProjection::kIndexK}},
      {"model.layers.0.self_attn.o_proj",
       12,
       8,
       {0, LoraBlock::kAttention, 0, LoraProjection::kOutput}},
      {"layers.0.self_attn.v_proj", 8, 4, {0, LoraBlock::kAttention, 0, LoraProjection::kV}},
      {"base_model.model.language_model.layers.0.mlp.gate_up_proj",
       8,
       20,
       {0, LoraBlock::kMlp, 0, LoraProjection::kGateUp}},
      {"base_model.model.model.layers.0.block_sparse_moe.down_proj",
       10,
       8,
       {0, LoraBlock::kMlp, 0, LoraProjection::kDown}},
      {"base_model.model.model.layers.1.block_sparse_moe.shared_experts.up_proj",
       8,
       5,
       {1, LoraBlock::kSharedExpert, 0, LoraProjection::kUp}},
      {"base_model.model.model.layers.1.block_sparse_moe.experts.1.w1",
       8,
       6,
       {1, LoraBlock::kExpert, 1, LoraProjection::kGate}},
      {"base_model.model.model.layers.1.mlp.experts.0.w3",
       8,
       6,
       {1, LoraBlock::kExpert, 0, LoraProjection::kUp}},
      {"base_model.model.model.layers.1.mlp.experts.1.down_proj",
       6,
       8,
       {1, LoraBlock::kExpert, 1, LoraProjection::kDown}},
  };
  for (const auto& c : cases) {
    Folder folder;
    folder.only({c.module, 2, c.inputs, c.outputs});
    const LoraAdapter adapter = folder.read();
    ASSERT_EQ(adapter.pairs().size(), 1U) << c.module;
    EXPECT_EQ(adapter.pairs()[0].target, c.target) << c.module;
  }
}

TEST(LoraAdapter, ModulesThatTakeNoneAreNamed) {
  const std::string root = "base_model.model.model.layers.";
  const std::pair<std::string, const char*> cases[] = {
      {root + "1.mlp.gate", "the router takes no adapter"},
      {root + "1.block_sparse_moe.gate", "the router takes no adapter"},
      {"base_model.model.lm_head", "lm_head takes no adapter"},
      {"base_model.model.model.embed_tokens", "the embedding takes no adapter"},
      {root + "0.input_layernorm", "norms take no adapter"},
      {root + "0.self_attn.q_norm", "norms take no adapter"},
      {"base_model.model.model.vision_tower.layers.0.self_attn.q_proj", "vision part"},
      {root + "0.self_attn.g_proj", "no projection of this model"},
      {root + "x.self_attn.q_proj", "no projection of this model"},
      {root + "-1.self_attn.q_proj", "no projection of this model"},
      {root + "1.mlp.experts.01.w1", "no projection of this model"},
      {root + "99999999999.self_attn.q_proj", "no projection of this model"},
      {root + "2.self_attn.q_proj", "layer 2 of 2"},
      {root + "0.self_attn.index_q_proj", "layer 0 has no index branch"},
      {root + "1.mlp.down_proj", "layer 1 has experts, no dense MLP"},
      {root + "0.mlp.shared_experts.down_proj", "layer 0 has a dense MLP, no experts"},
      {root + "0.mlp.experts", "layer 0 has a dense MLP, no experts"},
      {root + "1.mlp.experts.2.w1", "expert 2 of 2"},
  };
  for (const auto& [module, reason] : cases) {
    Folder folder;
    folder.only({module, 2, 8, 12});
    EXPECT_THAT(folder.refusal(), AllOf(HasSubstr(module), HasSubstr(reason)));
  }
}

// target_modules="all-linear" also wraps the vision tower, whose B training on text leaves zero.
TEST(LoraAdapter, VisionPairsThatAddNothingAreLeftOut) {
  Folder folder;
  folder.add({"base_model.model.model.vision_tower.layers.0.self_attn.q_proj", 2, 8, 12});
  const auto fill = [](const std::string& name, std::int64_t) {
    return name.find("vision") != std::string::npos && name.find("lora_B") != std::string::npos
               ? 0.F
               : 1.F;
  };
  EXPECT_EQ(folder.read(fill).pairs().size(), 1U);
}

TEST(LoraAdapter, ConfigsThatAskForMoreAreNamed) {
  const std::pair<json, const char*> cases[] = {
      {{{"peft_type", "PREFIX_TUNING"}}, "peft_type"},
      {{{"bias", "all"}}, "bias"},
      {{{"lora_bias", true}}, "lora_bias"},
      {{{"use_dora", true}}, "use_dora"},
      {{{"use_qalora", true}}, "use_qalora"},
      {{{"fan_in_fan_out", true}}, "fan_in_fan_out"},
      {{{"modules_to_save", {"lm_head"}}}, "modules_to_save"},
      {{{"alora_invocation_tokens", {1, 2}}}, "alora_invocation_tokens"},
      {{{"trainable_token_indices", {1}}}, "trainable_token_indices"},
      {{{"layer_replication", {{0, 1}}}}, "layer_replication"},
      {{{"init_lora_weights", "pissa_niter_4"}}, "path_initial_model_for_weight_conversion"},
      {{{"some_new_method", {{"x", 1}}}}, "some_new_method"},
      {{{"r", 0}}, "r is 0"},
      {{{"r", "8"}}, "r is \"8\""},
      {{{"r", nullptr}}, "r is missing"},
      {{{"lora_alpha", "x"}}, "lora_alpha"},
      {{{"lora_alpha", nullptr}}, "lora_alpha is missing"},
      {{{"use_rslora", 1}}, "use_rslora"},
      {{{"target_modules", 3}}, "target_modules"},
      {{{"target_modules", {1}}}, "target_modules"},
      {{{"target_parameters", "x"}}, "target_parameters"},
      {{{"rank_pattern", {{"q_proj", 0}}}}, "rank_pattern.q_proj"},
      {{{"rank_pattern", {{"(", 2}}}}, "pattern \"(\""},
      {{{"rank_pattern", {1}}}, "rank_pattern"},
      {{{"alpha_pattern", {{"q_proj", "x"}}}}, "alpha_pattern.q_proj"},
  };
  for (const auto& [change, reason] : cases) {
    Folder folder;
    folder.config.update(change);
    EXPECT_THAT(folder.refusal(), AllOf(HasSubstr("adapter_config.json"), HasSubstr(reason)))
        << change;
  }
}

TEST(LoraAdapter, KeysThatAreOffOrOfTrainingAreAccepted) {
  Folder folder;
  folder.config.update({{"modules_to_save", nullptr},
                        {"use_dora", false},
                        {"layer_replication", nullptr},
                        {"lora_dropout", 0.1},
                        {"rank_pattern", json::object()},
                        {"target_modules", "all-linear"},
                        {"init_lora_weights", "gaussian"},
                        {"loftq_config", json::object()},
                        {"some_new_method", nullptr},
                        {"peft_version", "9.9"}});
  EXPECT_EQ(folder.read().pairs().size(), 1U);
}

TEST(LoraAdapter, TensorsOfTheWrongFormAreNamed) {
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  const std::string k = "base_model.model.model.layers.0.self_attn.k_proj";
  using Tensor = SafetensorsWriter::Tensor;
  const std::pair<std::vector<Tensor>, const char*> cases[] = {
      {{{q + ".lora_A.weight", DType::kF32, {2, 8}}}, "no lora_B.weight"},
      {{{q + ".lora_B.weight", DType::kF32, {12, 2}}}, "no lora_A.weight"},
      {{{q + ".weight", DType::kF32, {12, 8}}}, "neither lora_A.weight nor lora_B.weight"},
      {{{q + ".lora_magnitude_vector", DType::kF32, {12}}}, "DoRA is not computed"},
      {{{q + ".lora_A.weight", DType::kF32, {2, 9}}, {q + ".lora_B.weight", DType::kF32, {12, 2}}},
       "9 inputs and B writes 12 outputs, expected 8 and 12"},
      {{{q + ".lora_A.weight", DType::kF32, {2, 8}}, {q + ".lora_B.weight", DType::kF32, {11, 2}}},
       "expected 8 and 12"},
      {{{q + ".lora_A.weight", DType::kF32, {3, 8}}, {q + ".lora_B.weight", DType::kF32, {12, 3}}},
       "ranks 3 of A and 3 of B, expected 2"},
      {{{q + ".lora_A.weight", DType::kF32, {2, 8}}, {q + ".lora_B.weight", DType::kF32, {12, 3}}},
       "ranks 2 of A and 3 of B"},
      {{{q + ".lora_A.weight", DType::kI8, {2, 8}}, {q + ".lora_B.weight", DType::kF32, {12, 2}}},
       "I8, expected F32, F16 or BF16"},
      {{{q + ".lora_A.weight", DType::kF32, {16}}, {q + ".lora_B.weight", DType::kF32, {12, 2}}},
       "expected a matrix"},
      {{{q + ".lora_A.weight", DType::kF32, {0, 8}}, {q + ".lora_B.weight", DType::kF32, {12, 0}}},
       "expected a matrix"},
      {{}, "no pair of lora_A and lora_B"},
  };
  for (const auto& [tensors, reason] : cases) {
    Folder folder;
    folder.tensors = tensors;
    EXPECT_THAT(folder.refusal(), HasSubstr(reason));
  }
  Folder both;
  both.tensors = {{q + ".lora_A.weight", DType::kF32, {2, 8}},
                  {k + ".lora_B.weight", DType::kF32, {4, 2}}};
  both.config["use_dora"] = true;
  EXPECT_THAT(both.refusal(), AllOf(HasSubstr("3 problems"), HasSubstr("use_dora"),
                                    HasSubstr("q_proj"), HasSubstr("k_proj")));
}

TEST(LoraAdapter, TwoPairsOfOneProjectionAreRefused) {
  const std::string mlp = "base_model.model.model.layers.0.mlp.";
  const std::string moe = "base_model.model.model.layers.1.mlp.experts";
  const std::vector<Pair> cases[] = {
      {{mlp + "gate_up_proj", 2, 8, 20}, {mlp + "gate_proj", 2, 8, 10}},
      {{mlp + "gate_up_proj", 2, 8, 20}, {mlp + "up_proj", 2, 8, 10}},
      {{mlp + "down_proj", 2, 10, 8}, {"model.layers.0.mlp.down_proj", 2, 10, 8}},
      {{moe + ".0.w1", 2, 8, 6}, {moe + ".0.gate_proj", 2, 8, 6}},
      {{moe, 4, 6, 8}, {moe + ".1.w2", 2, 6, 8}},
      {{moe, 4, 6, 8}, {moe + ".base_layer", 4, 6, 8}},
  };
  for (const std::vector<Pair>& pairs : cases) {
    Folder folder;
    folder.tensors.clear();
    for (const Pair& pair : pairs) folder.add(pair);
    EXPECT_THAT(folder.refusal(), HasSubstr("two pairs for"));
  }
}

TEST(LoraAdapter, RanksAndValuesAreBounded) {
  const Folder folder;
  const auto ones = [](const std::string&, std::int64_t) { return 1.F; };
  EXPECT_NO_THROW((void)folder.read(ones, 2));
  EXPECT_THROW((void)folder.read(ones, 1), Error);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const char* half : {"lora_A", "lora_B"}) {
      const auto fill = [&](const std::string& name, std::int64_t i) {
        return i == 5 && name.find(half) != std::string::npos ? value : 1.F;
      };
      EXPECT_THROW((void)folder.read(fill), Error);
    }
  }
}

TEST(LoraAdapter, FoldersWithoutAnAdapterSayWhatIsMissing) {
  const auto refusal = [](const std::filesystem::path& folder) {
    try {
      (void)LoraAdapter(folder, smallest_lora_target(), kMaxRank);
    } catch (const Error& error) {
      return error.text();
    }
    return std::string("accepted");
  };
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.path() / "absent"), HasSubstr("no adapter_config.json"));
  EXPECT_THAT(refusal(std::string(5000, 'x')), HasSubstr("no adapter_config.json"));
  EXPECT_THAT(refusal(std::string("a\0b", 3)), HasSubstr("no adapter_config.json"));
  std::ofstream(folder.path() / "adapter_config.json") << "{";
  EXPECT_THAT(refusal(folder.path()), HasSubstr("not valid JSON"));
  std::ofstream(folder.path() / "adapter_config.json") << R"({"peft_type": "LORA"})";
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no adapter_model.safetensors"));
  std::ofstream(folder.path() / "adapter_model.bin") << "x";
  EXPECT_THAT(refusal(folder.path()), AllOf(HasSubstr("pickle"), HasSubstr("safe_serialization")));
}

TEST(LoraAdapter, APatternThatTakesForeverIsRefused) {
  Folder folder;
  folder.only({"model.layers.0.self_attn.q_proj", 2, 8, 12});
  folder.config["rank_pattern"] = {{"([a-z_.0-9]+)+[A-Z]", 2}};
  EXPECT_THAT(folder.refusal(), HasSubstr("takes too many steps"));
  folder.config["rank_pattern"] = {{std::string(5000, 'a'), 2}};
  EXPECT_THAT(folder.refusal(), HasSubstr("longer than"));
}

/// Cuts and flipped bits all over both files: read or refused, never followed out of bounds.
TEST(LoraAdapter, AnyDamageIsReadOrRefused) {
  Folder folder;
  folder.add({"base_model.model.model.layers.1.mlp.experts", 4, 6, 8});
  folder.config["rank_pattern"] = {{"q_proj", 2}};
  (void)folder.read();
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::filesystem::path path = folder.folder.path() / name;
    std::ifstream in(path, std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(in), {}};
    const auto try_bytes = [&](const std::string& bytes) {
      std::ofstream(path, std::ios::binary) << bytes;
      try {
        const LoraAdapter adapter(folder.folder.path(), smallest_lora_target(), kMaxRank);
        for (const LoraPair& pair : adapter.pairs()) {
          (void)adapter.read(pair.a);
          (void)adapter.read(pair.b);
        }
      } catch (const Error& error) {
        EXPECT_FALSE(error.text().empty());
      }
    };
    for (std::size_t at = 0; at < good.size(); at += at < 700 ? 1 : 17) {
      try_bytes(good.substr(0, at));
      std::string changed = good;
      changed[at] = static_cast<char>(changed[at] ^ (1 << at % 7));
      try_bytes(changed);
    }
    std::ofstream(path, std::ios::binary) << good;
  }
}

}  // namespace
}  // namespace winnow
