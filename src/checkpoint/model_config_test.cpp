#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/json_file.h"

namespace winnow {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::filesystem::path kGolden = WINNOW_SOURCE_DIR "/tests/golden";

// The published values of MiniMax-M3 (spec/model-config-m3.json).
json published() {
  std::vector<int> freq(60, 1);
  freq[0] = freq[1] = freq[2] = 0;
  return {{"architectures", {"MiniMaxM3SparseForConditionalGeneration"}},
          {"model_type", "minimax_m3_vl"},
          {"image_token_index", 200025},
          {"video_token_index", 200026},
          {"torch_dtype", "bfloat16"},
          {"vision_config", {{"hidden_size", 1280}}},
          {"text_config",
           {{"dtype", "bfloat16"},
            {"hidden_size", 6144},
            {"intermediate_size", 3072},
            {"num_hidden_layers", 60},
            {"num_attention_heads", 64},
            {"num_key_value_heads", 4},
            {"head_dim", 128},
            {"vocab_size", 200064},
            {"max_position_embeddings", 1048576},
            {"rms_norm_eps", 1e-6},
            {"use_gemma_norm", true},
            {"attention_output_gate", false},
            {"rope_theta", 5000000},
            {"rotary_dim", 64},
            {"partial_rotary_factor", 0.5},
            {"hidden_act", "swigluoai"},
            {"use_qk_norm", true},
            {"tie_word_embeddings", false},
            {"dense_intermediate_size", 12288},
            {"shared_intermediate_size", 3072},
            {"num_local_experts", 128},
            {"num_experts_per_tok", 4},
            {"n_shared_experts", 1},
            {"scoring_func", "sigmoid"},
            {"use_routing_bias", true},
            {"moe_layer_freq", freq},
            {"qk_norm_type", "per_head"},
            {"num_mtp_modules", 1},
            {"swiglu_alpha", 1.702},
            {"swiglu_limit", 7.0},
            {"routed_scaling_factor", 2.0},
            {"sparse_attention_config",
             {{"use_sparse_attention", true},
              {"sparse_index_dim", 128},
              {"sparse_num_index_heads", 4},
              {"sparse_topk_blocks", 16},
              {"sparse_block_size", 128},
              {"sparse_disable_index_value", freq},
              {"sparse_score_type", "max"},
              {"sparse_init_block", 0},
              {"sparse_local_block", 1},
              {"sparse_attention_freq", freq}}}}}};
}

ModelConfig parse(const json& config, std::vector<std::string>& found) {
  ProblemList problems;
  ModelConfig parsed = parse_model_config(config, nullptr, problems);
  found.assign(problems.all().begin(), problems.all().end());
  return parsed;
}

std::vector<std::string> problems_of(const json& config) {
  std::vector<std::string> problems;
  parse(config, problems);
  return problems;
}

TEST(ModelConfig, PublishedM3) {
  std::vector<std::string> problems;
  const ModelConfig config = parse(published(), problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(config.hidden_size, 6144);
  EXPECT_EQ(config.num_layers, 60);
  EXPECT_EQ(config.num_heads, 64);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_EQ(config.top_k_blocks, 16);
  EXPECT_EQ(config.local_blocks, 1);
  EXPECT_EQ(config.init_blocks, 0);
  EXPECT_EQ(config.num_sparse_layers(), 57);
  EXPECT_FALSE(config.layers[2].is_moe);
  EXPECT_TRUE(config.layers[3].is_moe);
  EXPECT_EQ(config.routed_scaling_factor, 2.0);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(200020));
  EXPECT_THAT(config.bos_token_ids, ElementsAre(200034));
  EXPECT_EQ(config.image_token, 200025);
  EXPECT_TRUE(config.has_vision);
  EXPECT_EQ(config.default_cache_dtype(), CacheDType::kBF16);
}

TEST(ModelConfig, M31ByItsQuantisationAndIndexLayers) {
  json config = published();
  config["quantization_config"] = {{"quant_method", "mxfp8"},
                                   {"moe_quant_algo", "NVFP4"},
                                   {"moe_quant_format", "nvfp4-pack-quantized"}};
  std::vector<std::string> problems;
  EXPECT_EQ(parse(config, problems).default_cache_dtype(), CacheDType::kBF16);
  for (const char* key : {"sparse_attention_freq", "sparse_disable_index_value"}) {
    config["text_config"]["sparse_attention_config"][key] = std::vector<int>(60, 1);
  }
  EXPECT_EQ(parse(config, problems).default_cache_dtype(), CacheDType::kNvfp4);
  config["quantization_config"]["kv_cache_quant_algo"] = "FP8";
  EXPECT_EQ(parse(config, problems).default_cache_dtype(), CacheDType::kFp8);
  EXPECT_THAT(problems, IsEmpty());
}

TEST(ModelConfig, FlattenedPublishedForm) {
  json config = published()["text_config"];
  config["model_type"] = "minimax_m3";
  std::vector<std::string> problems;
  EXPECT_EQ(parse(config, problems).num_sparse_layers(), 57);
  EXPECT_THAT(problems, IsEmpty());
}

TEST(ModelConfig, TransformersSpellingOfTheGoldens) {
  const ModelConfig nano = read_model_config(kGolden / "nano-text");
  EXPECT_EQ(nano.block_tokens, 16);
  EXPECT_EQ(nano.top_k_blocks, 4);
  EXPECT_EQ(nano.rotary_dim, 16);
  EXPECT_EQ(nano.rope_theta, 5e6);
  EXPECT_EQ(nano.num_sparse_layers(), 4);
  EXPECT_FALSE(nano.layers[0].is_moe);
  EXPECT_EQ(nano.dense_intermediate, 256);
  EXPECT_EQ(nano.moe_intermediate, 64);
  EXPECT_THAT(nano.eos_token_ids, ElementsAre(2));
  const ModelConfig heads = read_model_config(kGolden / "m3-heads");
  EXPECT_EQ(heads.dtype, "bfloat16");
  EXPECT_EQ(heads.rotary_dim, 64);
  EXPECT_EQ(heads.num_heads, 16);
}

TEST(ModelConfig, GenerationConfigComesFirst) {
  ProblemList problems;
  const json generation = {{"eos_token_id", {7, 8}}, {"temperature", 0.6}, {"top_k", 40}};
  json config = published();
  config["text_config"]["eos_token_id"] = 9;
  const ModelConfig parsed = parse_model_config(config, &generation, problems);
  EXPECT_THAT(parsed.eos_token_ids, ElementsAre(7, 8));
  EXPECT_EQ(parsed.generation.temperature, 0.6);
  EXPECT_EQ(parsed.generation.top_k, 40);
  EXPECT_FALSE(parsed.generation.top_p.has_value());
  EXPECT_TRUE(problems.empty());
}

// cases.md C4: no default hides a missing activation constant.
TEST(ModelConfig, MissingActivationConstantsAreErrors) {
  for (const char* key : {"swiglu_alpha", "swiglu_limit", "routed_scaling_factor"}) {
    json config = published();
    config["text_config"].erase(key);
    EXPECT_THAT(problems_of(config), ElementsAre(AllOf(HasSubstr(key), HasSubstr("missing"))));
    config["text_config"][key] = nullptr;
    EXPECT_THAT(problems_of(config), ElementsAre(AllOf(HasSubstr(key), HasSubstr("missing"))));
  }
}

TEST(ModelConfig, UnusualActivationConstantsArePassedOn) {
  json config = published();
  config["text_config"]["swiglu_alpha"] = 1.1;
  config["text_config"]["swiglu_limit"] = 0.5;
  std::vector<std::string> problems;
  const ModelConfig parsed = parse(config, problems);
  EXPECT_EQ(parsed.swiglu_alpha, 1.1);
  EXPECT_EQ(parsed.swiglu_limit, 0.5);
}

TEST(ModelConfig, EveryRequiredKeyIsNamedWhenMissing) {
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
        "rope_theta", "dense_intermediate_size", "num_local_experts", "num_experts_per_tok"}) {
    json config = published();
    config["text_config"].erase(key);
    EXPECT_THAT(problems_of(config), Contains(AllOf(HasSubstr(std::string("text_config.") + key),
                                                    HasSubstr("missing"))));
  }
  for (const char* key : {"sparse_index_dim", "sparse_num_index_heads", "sparse_topk_blocks",
                          "sparse_block_size", "sparse_local_block"}) {
    json config = published();
    config["text_config"]["sparse_attention_config"].erase(key);
    EXPECT_THAT(problems_of(config), Contains(AllOf(HasSubstr(key), HasSubstr("missing"))));
  }
}

// What the model code has one answer to: another value is refused by key, value and expectation.
TEST(ModelConfig, RefusesWhatIsNotServed) {
  const auto refused = [](const json::json_pointer& where, const json& value) {
    json config = published();
    config[where] = value;
    const std::vector<std::string> problems = problems_of(config);
    EXPECT_THAT(problems, Contains(AllOf(HasSubstr(where.back()), HasSubstr("expected"))))
        << where << " " << value;
  };
  using pointer = json::json_pointer;
  refused(pointer("/model_type"), "llama");
  refused(pointer("/text_config/use_gemma_norm"), false);
  refused(pointer("/text_config/attention_output_gate"), true);
  refused(pointer("/text_config/use_qk_norm"), false);
  refused(pointer("/text_config/qk_norm_type"), "per_layer");
  refused(pointer("/text_config/hidden_act"), "gelu");
  refused(pointer("/text_config/swiglu_beta"), 0.5);
  refused(pointer("/text_config/scoring_func"), "softmax");
  refused(pointer("/text_config/use_routing_bias"), false);
  refused(pointer("/text_config/n_shared_experts"), 2);
  refused(pointer("/text_config/rope_scaling"), json{{"rope_type", "yarn"}});
  refused(pointer("/text_config/num_attention_heads"), 63);
  refused(pointer("/text_config/num_experts_per_tok"), 129);
  refused(pointer("/text_config/rotary_dim"), 32);
  refused(pointer("/text_config/hidden_size"), 0);
  refused(pointer("/text_config/hidden_size"), -5);
  refused(pointer("/text_config/hidden_size"), 1e9);
  refused(pointer("/text_config/hidden_size"), "6144");
  refused(pointer("/text_config/hidden_size"), 18446744073709551615ULL);
  refused(pointer("/text_config/rms_norm_eps"), 0);
  refused(pointer("/text_config/swiglu_alpha"), "x");
  refused(pointer("/text_config/moe_layer_freq"), std::vector<int>(59, 1));
  refused(pointer("/text_config/sparse_attention_config/sparse_score_type"), "mean");
  refused(pointer("/text_config/sparse_attention_config/sparse_local_block"), 0);
}

TEST(ModelConfig, RefusesIndexBranchesOfAnotherShape) {
  const auto refused = [](const char* key, const json& value, const char* text) {
    json config = published();
    config["text_config"]["sparse_attention_config"][key] = value;
    EXPECT_THAT(problems_of(config), Contains(HasSubstr(text))) << key;
  };
  refused("sparse_num_index_heads", 8, "8 index heads, expected num_key_value_heads (4)");
  refused("sparse_index_dim", 64, "index head dim is 64, expected head_dim (128)");
  refused("sparse_block_size", 100, "multiple of 16");
  refused("sparse_init_block", 16, "always selected");
  refused("sparse_disable_index_value", std::vector<int>(60, 0), "sparse_disable_index_value[3]");
  refused("sparse_attention_freq", std::vector<int>(60, 2), "sparse_attention_freq[0]");
}

TEST(ModelConfig, BlocksGivenInTokensRoundUp) {
  json config = published();
  json& sparse = config["text_config"]["sparse_attention_config"];
  sparse.erase("sparse_local_block");
  sparse.erase("sparse_init_block");
  sparse["sparse_local_tokens"] = 129;
  sparse["sparse_init_tokens"] = 1;
  std::vector<std::string> problems;
  const ModelConfig parsed = parse(config, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(parsed.local_blocks, 2);
  EXPECT_EQ(parsed.init_blocks, 1);
}

// spec/model.md trap 6: the two spellings of the rotated width must not differ in silence.
TEST(ModelConfig, RotaryWidthFromEitherSpelling) {
  json config = published();
  config["text_config"].erase("rotary_dim");
  std::vector<std::string> problems;
  EXPECT_EQ(parse(config, problems).rotary_dim, 64);
  EXPECT_THAT(problems, IsEmpty());
  config["text_config"].erase("partial_rotary_factor");
  EXPECT_THAT(problems_of(config), Contains(HasSubstr("rotary_dim or partial_rotary_factor")));
}

TEST(ModelConfig, ConflictingSpellings) {
  json config = published();
  config["text_config"]["layer_types"] = std::vector<std::string>(60, "full_attention");
  EXPECT_THAT(problems_of(config),
              ElementsAre(HasSubstr("sparse_attention_freq and layer_types disagree")));
}

TEST(ModelConfig, DenseAttentionModelNeedsNoIndexKeys) {
  json config = published();
  config["text_config"]["sparse_attention_config"]["use_sparse_attention"] = false;
  std::vector<std::string> problems;
  const ModelConfig parsed = parse(config, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(parsed.num_sparse_layers(), 0);
  EXPECT_EQ(parsed.block_tokens, 128);
}

TEST(ModelConfig, TokenIdsMustBeInTheVocabulary) {
  json config = published();
  config["text_config"]["eos_token_id"] = 200064;
  EXPECT_THAT(problems_of(config),
              ElementsAre(AllOf(HasSubstr("eos_token_id"), HasSubstr("200064"))));
  config["text_config"]["eos_token_id"] = json::array({1, "x", -2});
  EXPECT_EQ(problems_of(config).size(), 2U);
}

TEST(ModelConfig, UnknownQuantisationMethod) {
  json config = published();
  config["quantization_config"] = {{"quant_method", "gptq"}};
  EXPECT_THAT(problems_of(config), ElementsAre(AllOf(HasSubstr("gptq"), HasSubstr("mxfp8"))));
}

TEST(ModelConfig, MissingFileAndBadFile) { EXPECT_THROW(read_model_config(kGolden), Error); }

}  // namespace
}  // namespace winnow
