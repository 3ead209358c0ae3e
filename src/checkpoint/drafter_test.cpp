// The drafter's config and weights: what is read, and every way in which they can be wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/drafter_weights.h"
#include "checkpoint/inspect.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kRoot = "language_model.model.dspark.";

ModelConfig m31_target() {
  ModelConfig target;
  target.num_layers = 60;
  target.hidden_size = 6144;
  target.vocab_size = 200064;
  target.rotary_dim = 64;
  target.rope_theta = 5e6;
  target.rms_eps = 1e-6;
  target.swiglu_alpha = 1.702;
  target.swiglu_limit = 7;
  return target;
}

// The published values (spec/speculative.md 1.1).
json published() {
  return {{"architectures", {"DSparkMiniMaxDraftModel"}},
          {"dspark_config", {{"hybrid_context_fusion", false}}},
          {"quantization_config", {{"quant_method", "mxfp8"}, {"weight_block_size", {1, 32}}}},
          {"text_config",
           {{"num_hidden_layers", 5},
            {"hidden_size", 6144},
            {"vocab_size", 200064},
            {"num_attention_heads", 64},
            {"num_key_value_heads", 4},
            {"head_dim", 128},
            {"dense_intermediate_size", 12288},
            {"dspark_ffn_hidden_size", 12288},
            {"sliding_window", 4096},
            {"layer_types", std::vector<std::string>(5, "sliding_attention")},
            {"moe_layer_freq", std::vector<int>(5, 0)},
            {"dspark_block_size", 7},
            {"dspark_markov_rank", 256},
            {"dspark_markov_head_type", "vanilla"},
            {"dspark_noise_token_id", 200058},
            {"dspark_target_layer_ids", {3, 17, 31, 45, 59}},
            {"dspark_use_dense_ffn", true},
            {"dspark_hybrid_context_fusion", false},
            {"enable_confidence_head", true},
            {"confidence_head_with_markov", true},
            {"use_gemma_norm", true},
            {"sparse_attention_config", nullptr}}}};
}

std::vector<std::string> problems_of(const json& config) {
  ProblemList problems;
  parse_drafter_config(config, m31_target(), problems);
  return {problems.all().begin(), problems.all().end()};
}

DrafterConfig parse(const json& config) {
  ProblemList problems;
  DrafterConfig parsed = parse_drafter_config(config, m31_target(), problems);
  EXPECT_THAT(problems.all(), IsEmpty());
  return parsed;
}

TEST(DrafterConfig, ReadsThePublishedFile) {
  const DrafterConfig config = parse(published());
  EXPECT_EQ(config.num_layers, 5);
  EXPECT_EQ(config.ffn_width, 12288);
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_EQ(config.block_size, 7);
  EXPECT_EQ(config.noise_token, 200058);
  EXPECT_THAT(config.target_layers, ElementsAre(3, 17, 31, 45, 59));
  EXPECT_TRUE(config.has_confidence_head);
  EXPECT_EQ(config.confidence_width(), 6400);
  // From the target, where the file is silent.
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_EQ(config.swiglu_limit, 7);
}

// Spec 1.3: the first spelling that is present counts.
TEST(DrafterConfig, AliasesInTheirOrder) {
  json config = published();
  config["text_config"]["pard_token"] = 3;
  EXPECT_EQ(parse(config).noise_token, 200058);
  config["text_config"]["mask_token_id"] = 2;
  EXPECT_EQ(parse(config).noise_token, 2);
  config["dflash_config"] = {{"mask_token_id", 1}, {"target_layer_ids", {1, 2}}};
  EXPECT_EQ(parse(config).noise_token, 1);
  EXPECT_THAT(parse(config).target_layers, ElementsAre(1, 2));
  config["text_config"]["eagle_aux_hidden_state_layer_ids"] = {1, 60};  // inputs of layers
  EXPECT_THAT(parse(config).target_layers, ElementsAre(0, 59));
  config["text_config"]["eagle_aux_hidden_state_layer_ids"] = {0, 60};  // the embedding
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("eagle_aux_hidden_state_layer_ids[0]")));
}

// As drafters of Qwen3 layers are published (spec/speculative.md 1.2), for MiniMax-M3.
json qwen3() {
  return {{"architectures", {"Qwen3DSparkModel"}},
          {"model_type", "qwen3"},
          {"num_hidden_layers", 6},
          {"hidden_size", 6144},
          {"vocab_size", 200064},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"intermediate_size", 12288},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 5000000},
          {"layer_types", std::vector<std::string>(6, "sliding_attention")},
          {"sliding_window", 1024},
          {"use_sliding_window", true},
          {"block_size", 8},
          {"mask_token_id", 200063},
          {"target_layer_ids", {1, 15, 29, 43, 57}},
          {"markov_rank", 256},
          {"markov_head_type", "vanilla"},
          {"enable_confidence_head", true}};
}

TEST(Qwen3DrafterConfig, ReadsWhatDiffers) {
  const DrafterConfig config = parse(qwen3());
  EXPECT_EQ(config.kind, DrafterKind::kQwen3);
  EXPECT_EQ(config.num_layers, 6);
  EXPECT_EQ(config.ffn_width, 12288);
  EXPECT_EQ(config.rotary_dim, 128);
  EXPECT_EQ(config.rms_eps, 1e-5);
  EXPECT_EQ(config.norm_offset, 0);
  EXPECT_EQ(config.swiglu_alpha, 1);
  EXPECT_EQ(config.swiglu_limit, std::numeric_limits<double>::infinity());
  EXPECT_EQ(config.swiglu_offset, 0);
  EXPECT_EQ(config.sliding_window, 1024);
  EXPECT_EQ(config.block_size, 8);
  EXPECT_EQ(config.noise_token, 200063);
  EXPECT_THAT(config.target_layers, ElementsAre(1, 15, 29, 43, 57));
  EXPECT_TRUE(config.has_confidence_head);
  EXPECT_EQ(parse(published()).kind, DrafterKind::kMinimax);
  EXPECT_EQ(parse(published()).norm_offset, 1);
  EXPECT_EQ(parse(published()).swiglu_offset, 1);
}

TEST(Qwen3DrafterConfig, OtherSpellings) {
  json config = qwen3();
  config["architectures"] = {"DSparkDraftModel"};
  for (const char* key :
       {"mask_token_id", "target_layer_ids", "block_size", "rope_theta", "rms_norm_eps"}) {
    config.erase(key);
  }
  config["dflash_config"] = {
      {"mask_token_id", 7}, {"target_layer_ids", {2, 59}}, {"block_size", 4}, {"causal", false}};
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  const DrafterConfig parsed = parse(config);
  EXPECT_EQ(parsed.kind, DrafterKind::kQwen3);
  EXPECT_EQ(parsed.noise_token, 7);
  EXPECT_THAT(parsed.target_layers, ElementsAre(2, 59));
  EXPECT_EQ(parsed.block_size, 4);
  EXPECT_EQ(parsed.rope_theta, 1e6);
  EXPECT_EQ(parsed.rms_eps, 1e-6);
  config["eagle_aux_hidden_state_layer_ids"] = {1, 60};  // inputs of layers
  EXPECT_THAT(parse(config).target_layers, ElementsAre(0, 59));
  config["model_type"] = "llama";
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("architectures holds")));
}

// Trap 1 of the specification: a window is not lost because another key does not repeat it.
TEST(Qwen3DrafterConfig, LayerTypesDecideAboutTheWindow) {
  json config = qwen3();
  config.erase("use_sliding_window");
  EXPECT_EQ(parse(config).sliding_window, 1024);
  config["use_sliding_window"] = false;
  EXPECT_EQ(parse(config).sliding_window, 1024);
  config["sliding_window"] = nullptr;
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("sliding_window is missing")));
  config["layer_types"] = std::vector<std::string>(6, "full_attention");
  EXPECT_EQ(parse(config).sliding_window, kUnlimitedWindow);
  config["layer_types"][3] = "sliding_attention";
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("layer_types[3]")));
  config.erase("layer_types");
  EXPECT_EQ(parse(config).sliding_window, kUnlimitedWindow);
  config["sliding_window"] = 512;
  EXPECT_EQ(parse(config).sliding_window, kUnlimitedWindow);
  config.erase("use_sliding_window");
  EXPECT_EQ(parse(config).sliding_window, 512);
}

TEST(Qwen3DrafterConfig, WhatIsNotComputedIsRefusedByName) {
  const std::pair<json, const char*> cases[] = {
      {{{"rope_theta", nullptr}}, "rope_theta is missing"},
      {{{"rotary_dim", 64}}, "rotary_dim is 64, expected head_dim (128)"},
      {{{"rope_is_neox_style", false}}, "rope_is_neox_style is false, expected true"},
      {{{"rope_scaling", {{"rope_type", "yarn"}}}}, "rope_scaling is an object"},
      {{{"hidden_act", "gelu"}}, "hidden_act is \"gelu\", expected \"silu\""},
      {{{"attention_bias", true}}, "attention_bias is true"},
      {{{"tie_word_embeddings", true}}, "tie_word_embeddings is true"},
      {{{"use_gemma_norm", true}}, "use_gemma_norm is true, expected false"},
      {{{"is_causal", true}}, "is_causal is true, expected false"},
      {{{"dflash_config", {{"causal", true}}}}, "dflash_config.causal is true"},
      {{{"intermediate_size", nullptr}}, "intermediate_size is missing"},
      {{{"draft_vocab_size", 32000}}, "draft_vocab_size is 32000"},
      {{{"vocab_size", 151936}}, "vocab_size is 151936"},
      {{{"markov_head_type", "gated"}}, "markov_head_type is \"gated\""},
      {{{"mask_token_id", nullptr}}, "mask_token_id is missing"},
      {{{"target_layer_ids", nullptr}}, "target_layer_ids is missing"},
      {{{"target_layer_ids", {1, 60}}}, "target_layer_ids[1] is 60"},
  };
  for (const auto& [change, message] : cases) {
    json config = qwen3();
    config.update(change);
    EXPECT_THAT(problems_of(config), Contains(HasSubstr(message)));
  }
}

struct BadKey {
  const char* key;
  json value;
  const char* message;
};

void PrintTo(const BadKey& bad, std::ostream* out) { *out << bad.key << " " << bad.value; }

class BadKeyTest : public testing::TestWithParam<BadKey> {};

INSTANTIATE_TEST_SUITE_P(
    , BadKeyTest,
    testing::Values(
        BadKey{"hidden_size", 4096, "hidden_size is 4096, expected the target's 6144"},
        BadKey{"vocab_size", 200, "vocab_size is 200, expected the target's 200064"},
        BadKey{"num_attention_heads", 63, "num_attention_heads is 63, expected a multiple"},
        BadKey{"dense_intermediate_size", 3072, "expected one value"},
        BadKey{"sliding_window", nullptr, "text_config.sliding_window is missing"},
        BadKey{"use_sliding_window", false, "text_config.use_sliding_window is false"},
        BadKey{"layer_types",
               {"full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                "sliding_attention"},
               "layer_types[0] is \"full_attention\", expected \"sliding_attention\""},
        BadKey{"moe_layer_freq", {0, 0, 1, 0, 0}, "moe_layer_freq[2] is 1, expected 0"},
        BadKey{"moe_layer_freq", {0}, "expected 5 entries of 0"},
        BadKey{"dspark_markov_head_type", "gated", "is \"gated\", expected \"vanilla\""},
        BadKey{"dspark_markov_head_type", "rnn", "is \"rnn\", expected \"vanilla\""},
        BadKey{"dspark_hybrid_context_fusion", true, "dspark_hybrid_context_fusion is true"},
        BadKey{"dspark_use_dense_ffn", false, "dspark_use_dense_ffn is false"},
        BadKey{"use_gemma_norm", false, "use_gemma_norm is false"},
        BadKey{"is_causal", true, "is_causal is true, expected false"},
        BadKey{"sample_from_anchor", false, "sample_from_anchor is false, expected true"},
        BadKey{"dspark_noise_token_id", 200064, "dspark_noise_token_id is 200064"},
        BadKey{"dspark_noise_token_id", nullptr, "dspark_noise_token_id is missing"},
        BadKey{"dspark_target_layer_ids", {3, 60}, "dspark_target_layer_ids[1] is 60"},
        BadKey{"dspark_target_layer_ids", {17, 3}, "dspark_target_layer_ids[1] is 3"},
        BadKey{"dspark_target_layer_ids", {3, 3}, "dspark_target_layer_ids[1] is 3"},
        BadKey{"dspark_target_layer_ids", json::array(), "1 to 64 layers"},
        BadKey{"dspark_target_layer_ids", nullptr, "dspark_target_layer_ids is missing"},
        BadKey{"sparse_attention_config", json::object(), "sparse_attention_config is an object"},
        BadKey{"rotary_dim", 63, "rotary_dim is 63, expected an even number"},
        BadKey{"rope_scaling", {{"type", "yarn"}}, "rope_scaling is an object, expected null"},
        BadKey{"dspark_block_size", 0, "dspark_block_size is 0"},
        BadKey{"dspark_markov_rank", "256", "dspark_markov_rank is \"256\""}));

TEST_P(BadKeyTest, IsRefusedByName) {
  json config = published();
  config["text_config"][GetParam().key] = GetParam().value;
  EXPECT_THAT(problems_of(config),
              Contains(AllOf(HasSubstr(GetParam().message), testing::StartsWith("config.json: "))));
}

TEST(DrafterConfig, OtherModelsAreRefusedByName) {
  json config = published();
  config["architectures"] = {"MiniMaxM3SparseForConditionalGeneration"};
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("its drafter is in the folder dspark/")));
  config["architectures"] = {"LlamaForCausalLM"};
  EXPECT_THAT(problems_of(config),
              ElementsAre(HasSubstr("expected DSparkMiniMaxDraftModel or Qwen3DSparkModel")));
  config["architectures"] = nullptr;
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("no architectures")));
  config = published();
  config["dspark_config"]["hybrid_context_fusion"] = true;
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("dspark_config.hybrid_context_fusion")));
  config = published();
  config["quantization_config"]["quant_method"] = "awq";
  EXPECT_THAT(problems_of(config), ElementsAre(HasSubstr("quant_method is \"awq\"")));
}

/// A target with a drafter, and the same with one tensor of the drafter changed.
class DrafterFolder : public testing::Test {
 protected:
  DrafterFolder() {
    options_.drafter = RandomDrafter{};
    write_random_checkpoint(folder_.path(), options_);
  }

  std::filesystem::path dspark() const { return folder_.path() / "dspark"; }

  using Tensor = SafetensorsWriter::Tensor;
  /// Rewrites the shard; `change` may rename, reshape, or drop (empty name) each tensor.
  void rewrite(const std::function<void(Tensor&)>& change, const std::vector<Tensor>& extra = {}) {
    std::vector<Tensor> tensors;
    std::vector<std::vector<std::byte>> contents;
    {
      const SafetensorsFile file(dspark() / "model.safetensors");
      for (const StoredTensor& stored : file.tensors()) {
        Tensor tensor{stored.name, stored.dtype, stored.shape};
        change(tensor);
        if (tensor.name.empty()) continue;
        std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
        for (const std::int64_t size : tensor.shape) bytes *= size;
        const TensorView view = file.view(stored);
        std::vector<std::byte> content(view.data, view.data + view.num_bytes());
        content.resize(static_cast<std::size_t>(bytes));
        tensors.push_back(std::move(tensor));
        contents.push_back(std::move(content));
      }
    }
    for (const Tensor& tensor : extra) {
      std::int64_t bytes = static_cast<std::int64_t>(dtype_bytes(tensor.dtype));
      for (const std::int64_t size : tensor.shape) bytes *= size;
      tensors.push_back(tensor);
      contents.emplace_back(static_cast<std::size_t>(bytes));
    }
    SafetensorsWriter writer(dspark() / "model.safetensors", tensors);
    for (std::size_t i = 0; i < tensors.size(); ++i) writer.append(tensors[i].name, contents[i]);
    writer.finish();
  }

  std::vector<std::string> problems() const {
    ProblemList found;
    const DrafterConfig config =
        read_drafter_config(folder_.path(), read_model_config(folder_.path()), found);
    const Checkpoint checkpoint(dspark());
    load_drafter_weights(checkpoint, config, {}, found);
    return {found.all().begin(), found.all().end()};
  }

  RandomCheckpoint options_;
  TemporaryFolder folder_;
};

TEST_F(DrafterFolder, EveryTensorIsRead) {
  const DrafterConfig config =
      read_drafter_config(folder_.path(), read_model_config(folder_.path()));
  const Checkpoint checkpoint(dspark());
  EXPECT_EQ(checkpoint.num_tensors(), 7U + 2 * (4 + 7 * 2));
  const DrafterWeights weights = load_drafter_weights(checkpoint, config);
  EXPECT_EQ(weights.fc.cols, 2 * 64);
  EXPECT_EQ(weights.fc.scheme, QuantScheme::kBF16);
  ASSERT_EQ(weights.layers.size(), 2U);
  EXPECT_EQ(weights.layers[1].q.scheme, QuantScheme::kMxfp8);
  EXPECT_EQ(weights.layers[1].mlp.down.cols, 96);
  EXPECT_EQ(weights.markov_w2.rows, 96);
  EXPECT_EQ(weights.confidence.cols, 64 + 16);
  std::vector<float> row(128);
  dequantize_rows(weights.fc, 3, 4, row.data());
  EXPECT_NEAR(row[5], random_weight(options_, kRoot + "fc", 3, 5, 128), 1e-3);
}

// Spec 11 item 10: every row of the tensor table missing, of another dtype, of another shape.
TEST_F(DrafterFolder, EveryTensorMissingOrWrongIsNamed) {
  std::vector<std::string> names;
  {
    const Checkpoint checkpoint(dspark());
    for (const auto name : checkpoint.names()) names.emplace_back(name);
  }
  ASSERT_EQ(names.size(), 43U);
  for (const std::string& name : names) {
    write_random_checkpoint(folder_.path(), options_);
    rewrite([&](Tensor& tensor) {
      if (tensor.name == name) tensor.name.clear();
    });
    EXPECT_THAT(problems(), Contains(AllOf(HasSubstr("dspark/model.safetensors: "), HasSubstr(name),
                                           HasSubstr("expected"))));
    write_random_checkpoint(folder_.path(), options_);
    rewrite([&](Tensor& tensor) {
      if (tensor.name == name) tensor.shape.back() += 1;
    });
    EXPECT_THAT(problems(), Contains(AllOf(HasSubstr("dspark/model.safetensors: "), HasSubstr(name),
                                           HasSubstr("expected"))));
    write_random_checkpoint(folder_.path(), options_);
    rewrite([&](Tensor& tensor) {
      if (tensor.name == name) tensor.dtype = DType::kI64;
    });
    EXPECT_THAT(problems(), Contains(AllOf(HasSubstr("dspark/model.safetensors: "), HasSubstr(name),
                                           HasSubstr("expected"))));
  }
}

TEST_F(DrafterFolder, AnEmbeddingOfItsOwnIsRefused) {
  rewrite([](Tensor&) {}, {{kRoot + "embed_tokens.weight", DType::kBF16, {96, 64}},
                           {"language_model.lm_head.weight", DType::kBF16, {96, 64}},
                           {kRoot + "markov_head.gate.weight", DType::kBF16, {16, 80}}});
  EXPECT_THAT(problems(),
              testing::UnorderedElementsAre(
                  AllOf(HasSubstr("embed_tokens"), HasSubstr("expected no embedding")),
                  AllOf(HasSubstr("lm_head"), HasSubstr("expected no embedding")),
                  AllOf(HasSubstr("markov_head.gate.weight BF16 [16, 80] is not part"))));
}

TEST_F(DrafterFolder, AWrongScaleIsFound) {
  std::int64_t offset = 0;
  const std::string name = kRoot + "layers.1.decoder_layer.mlp.up_proj.weight_scale_inv";
  {
    const SafetensorsFile file(dspark() / "model.safetensors");
    offset = file.find(name)->offset + 5;
  }
  std::fstream file(dspark() / "model.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.put('\xFF');
  file.close();
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr(name), HasSubstr("NaN"))));
}

TEST_F(DrafterFolder, WithoutAConfidenceHeadItsTensorsAreTooMany) {
  options_.drafter->has_confidence_head = false;
  write_random_checkpoint(folder_.path(), options_);
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(DrafterFolder, ADrafterOfQwen3LayersIsRead) {
  options_.drafter = {.kind = DrafterKind::kQwen3, .linears = MatrixSpelling::kBF16};
  write_random_checkpoint(folder_.path(), options_);
  EXPECT_THAT(problems(), IsEmpty());
  const Inspection inspection = inspect_checkpoint(folder_.path());
  EXPECT_TRUE(inspection.is_usable());
  EXPECT_THAT(render_inspection(inspection),
              AllOf(HasSubstr("drafter    DSpark: 2 Qwen3 layers, up to 7 tokens, window 24"),
                    HasSubstr("confidence head"), HasSubstr("drafter layers  bf16")));
  EXPECT_EQ(inspection_to_json(inspection)["drafter"]["kind"], "qwen3");

  std::vector<std::string> names;
  {
    const Checkpoint checkpoint(dspark());
    for (const auto name : checkpoint.names()) names.emplace_back(name);
  }
  ASSERT_EQ(names.size(), 7U + 2 * 11U);
  EXPECT_THAT(names, AllOf(Contains("norm.weight"), Contains("layers.1.self_attn.q_norm.weight")));
  for (const std::string& name : names) {
    for (const int change : {0, 1, 2}) {
      write_random_checkpoint(folder_.path(), options_);
      rewrite([&](Tensor& tensor) {
        if (tensor.name != name) return;
        if (change == 0) tensor.name.clear();
        if (change == 1) tensor.shape.back() += 1;
        if (change == 2) tensor.dtype = DType::kI64;
      });
      EXPECT_THAT(problems(), Contains(AllOf(HasSubstr("dspark/model.safetensors: "),
                                             HasSubstr(name), HasSubstr("expected"))));
    }
  }
}

TEST_F(DrafterFolder, WhatQwen3LayersMayBring) {
  options_.drafter = {.kind = DrafterKind::kQwen3, .has_own_tables = true};
  write_random_checkpoint(folder_.path(), options_);
  const auto load = [&] {
    const DrafterConfig config =
        read_drafter_config(folder_.path(), read_model_config(folder_.path()));
    return load_drafter_weights(Checkpoint(dspark()), config);
  };
  EXPECT_EQ(load().embed.rows, 96);
  EXPECT_EQ(load().lm_head.cols, 64);
  // Under model., as a library saves it; and a confidence head that config.json does not name.
  rewrite([](Tensor& tensor) {
    if (tensor.name != "lm_head.weight") tensor.name = "model." + tensor.name;
  });
  EXPECT_THAT(problems(), IsEmpty());
  json config = json::parse(std::ifstream(dspark() / "config.json"));
  config.erase("enable_confidence_head");
  std::ofstream(dspark() / "config.json") << config;
  EXPECT_EQ(load().confidence.cols, 64 + 16);
  EXPECT_EQ(load().embed.rows, 96);
  rewrite([](Tensor& tensor) {
    const bool is_dropped = tensor.name.find("embed_tokens") != std::string::npos ||
                            tensor.name.find("confidence_head") != std::string::npos;
    if (is_dropped) tensor.name.clear();
    if (tensor.name == "lm_head.weight") tensor.shape[0] -= 1;
  });
  EXPECT_THAT(problems(), ElementsAre(AllOf(HasSubstr("lm_head.weight: shape [95, 64]"),
                                            HasSubstr("expected [96, 64]"))));
}

TEST_F(DrafterFolder, InspectListsIt) {
  const Inspection inspection = inspect_checkpoint(folder_.path());
  EXPECT_TRUE(inspection.is_usable());
  ASSERT_TRUE(inspection.drafter);
  EXPECT_THAT(render_inspection(inspection),
              AllOf(HasSubstr("drafter    DSpark: 2 layers, up to 7 tokens, window 24"),
                    HasSubstr("after layers 0, 2"), HasSubstr("drafter layers  mxfp8")));
  EXPECT_EQ(inspection_to_json(inspection)["drafter"]["block_size"], 7);
  rewrite([](Tensor& tensor) {
    if (tensor.name.ends_with("fc.weight")) tensor.name.clear();
  });
  EXPECT_THAT(inspect_checkpoint(folder_.path()).problems,
              ElementsAre(HasSubstr("dspark/model.safetensors: " + kRoot + "fc.weight: missing")));
  std::ofstream(dspark() / "config.json") << "{";
  EXPECT_THAT(inspect_checkpoint(folder_.path()).problems,
              ElementsAre(HasSubstr("dspark/config.json: not valid JSON")));
}

TEST(DrafterConfig, ATargetWithoutOneSaysSo) {
  const TemporaryFolder folder;
  write_random_checkpoint(folder.path(), {});
  EXPECT_FALSE(has_drafter(folder.path()));
  EXPECT_FALSE(inspect_checkpoint(folder.path()).drafter);
  try {
    read_drafter_config(folder.path(), read_model_config(folder.path()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.text(), HasSubstr("no dspark/config.json"));
  }
}

TEST_F(DrafterFolder, IsFoundFromTheTargetsFolderAndFromItsOwn) {
  const ModelConfig target = read_model_config(folder_.path());
  EXPECT_EQ(find_drafter(folder_.path()), dspark());
  EXPECT_EQ(find_drafter(dspark()), dspark());
  EXPECT_EQ(read_drafter_config(dspark(), target).target_layers,
            read_drafter_config(folder_.path(), target).target_layers);
}

}  // namespace
}  // namespace winnow
