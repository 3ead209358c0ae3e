// The grammar of flags, table by table.
#include "cli/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "checkpoint/testing/temporary_folder.h"
#include "cli/engine_flags.h"
#include "cli/server_flags.h"
#include "cli/testing/usage_error_text.h"
#include "cli/usage_error.h"
#include "cli/value_grammar.h"

namespace winnow::cli {
namespace {

struct Parsed {
  EngineFlags engine;
  ServerFlags server;
  std::vector<std::string> notes;
  std::vector<std::string> checks;
};

/// `winnow serve` with these words, before anything is asked of the machine.
Parsed parse_only(const std::vector<std::string>& words,
                  std::map<std::string, std::string> variables = {}) {
  Parsed out;
  FlagSet set("serve");
  add_engine_flags(set, out.engine);
  add_lora_flags(set, out.engine.lora);
  add_server_flags(set, out.server);
  add_foreign_engine_flags(set);
  add_foreign_server_flags(set);
  set.set_environment(std::move(variables));
  EXPECT_TRUE(set.parse(words));
  out.notes = set.notes();
  return out;
}

Parsed parse(const std::vector<std::string>& words) {
  Parsed out = parse_only(words);
  out.checks = check_engine_flags(out.engine);
  return out;
}

std::string usage_error(const std::vector<std::string>& words) {
  return testing::usage_error_text([&] { parse(words); });
}

TEST(Flags, DashesUnderscoresEqualsAndShortForms) {
  for (const std::vector<std::string>& words : std::initializer_list<std::vector<std::string>>{
           {"m", "--max-num-seqs", "7", "-tp", "2"},
           {"m", "--max_num_seqs=7", "--tensor_parallel_size=2"},
           {"--max-num_seqs", "7", "-tp=2", "m"},
           {"--model", "m", "--max-num-seqs", "3", "--max-num-seqs", "7", "--tensor-parallel-size",
            "2"}}) {
    const Parsed parsed = parse_only(words);
    EXPECT_EQ(parsed.engine.max_num_seqs, 7);
    EXPECT_EQ(parsed.engine.tensor_parallel_size, 2);
    EXPECT_EQ(parsed.engine.model_folder(), "m");
  }
}

TEST(Flags, SwitchesHaveNoForms) {
  EXPECT_FALSE(parse({"m", "--no-enable-prefix-caching"}).engine.enable_prefix_caching);
  EXPECT_FALSE(parse({"m", "--no_enable_prefix_caching"}).engine.enable_prefix_caching);
  EXPECT_TRUE(parse({"m", "--no-enable-prefix-caching", "--enable-prefix-caching"})
                  .engine.enable_prefix_caching);
  EXPECT_FALSE(parse({"m", "--enable-prefix-caching=false"}).engine.enable_prefix_caching);
  EXPECT_NE(usage_error({"m", "--no-max-num-seqs"}), "");
}

TEST(Flags, ListsTakeSeveralWords) {
  const Parsed parsed =
      parse({"m", "--api-key", "a", "b", "--served-model-name", "x", "y", "--api-key", "c"});
  EXPECT_EQ(parsed.server.api_keys, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(parsed.server.served_model_names, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(parsed.engine.model_folder(), "m");
}

TEST(Flags, NegativeNumbersAreValues) {
  EXPECT_EQ(parse({"m", "--max-logprobs", "-1"}).engine.max_logprobs, -1);
  EXPECT_EQ(parse({"m", "--max-model-len", "-1"}).engine.max_model_len, "-1");
}

TEST(Flags, DottedMembersWinOverTheWholeObject) {
  const Parsed parsed =
      parse({"m", "--speculative-config.method", "dspark", "--speculative-config",
             R"({"method":"eagle3","num_speculative_tokens":7})", "--speculative_config.model=x",
             "--attention-config.indexer_decode_cp", "true"});
  EXPECT_EQ(parsed.engine.speculative_config,
            Json::parse(R"({"method":"dspark","num_speculative_tokens":7,"model":"x"})"));
  EXPECT_EQ(parsed.engine.attention_config, Json::parse(R"({"indexer_decode_cp":true})"));
}

TEST(Flags, DottedPathsNestAndAppend) {
  Json object = Json::object();
  set_dotted_member(object, "a.b", "1");
  set_dotted_member(object, "a.list+", "LIBFABRIC");
  set_dotted_member(object, "a.list+", "2");
  set_dotted_member(object, "c", "{\"d\":null}");
  EXPECT_EQ(object, Json::parse(R"({"a":{"b":1,"list":["LIBFABRIC",2]},"c":{"d":null}})"));
}

TEST(Flags, HumanSizes) {
  const struct {
    const char* text;
    std::int64_t value;
  } kGood[] = {{"5", 5},          {"32k", 32'000},   {"32K", 32'768},   {"25.6k", 25'600},
               {"1M", 1'048'576}, {"1m", 1'000'000}, {"2G", 2LL << 30}, {"-1", -1}};
  for (const auto& row : kGood) EXPECT_EQ(parse_human_integer("--x", row.text), row.value);
  for (const char* text : {"", "k", "1.5K", "1x", "1kk", "abc", "9999999T", "1e3", "NaN"}) {
    EXPECT_THROW(parse_human_integer("--x", text), UsageError) << text;
  }
}

TEST(Flags, ErrorsNameFlagAndRemedy) {
  EXPECT_NE(usage_error({"m", "--kv-cache-dtyp", "x"}).find("--kv-cache-dtype"), std::string::npos);
  EXPECT_NE(usage_error({"m", "-np", "4"}).find("--max-num-seqs"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--n-gpu-layers", "4"}).find("--device"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--kv-cache-dtype", "x"}).find("nvfp4"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--port"}).find("needs a value"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--port", "--host"}).find("needs a value"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--api-key"}).find("at least one"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--attention-config", "[]"}).find("JSON object"), std::string::npos);
  EXPECT_NE(usage_error({"m", "--port.x", "1"}).find("no members"), std::string::npos);
}

TEST(Flags, ForeignFlagsNoteOrRefuse) {
  const Parsed parsed = parse({"m", "--trust-remote-code", "--dtype", "bfloat16", "--swap-space",
                               "4", "-O", R"({"level":3})", "--no-enable-chunked-prefill"});
  EXPECT_EQ(parsed.notes.size(), 5U);
  EXPECT_THROW(parse({"m", "--enable-sleep-mode"}), Error);
  EXPECT_NO_THROW(parse({"m", "--no-enable-sleep-mode"}));
  EXPECT_NO_THROW(parse({"m", "--load-format", "safetensors"}));
  EXPECT_THROW(parse({"m", "--load-format", "dummy"}), Error);
}

TEST(Flags, BothAnnouncedCommandLinesParse) {
  const std::vector<std::string> common = {"MiniMaxAI/MiniMax-M3.1-Flash",
                                           "-tp",
                                           "4",
                                           "--reasoning-parser",
                                           "minimax_m3",
                                           "--block-size",
                                           "128",
                                           "--kv-cache-dtype",
                                           "nvfp4",
                                           "--disable-hybrid-kv-cache-manager"};
  std::vector<std::string> nvidia = common;
  nvidia.insert(
      nvidia.end(),
      {"--attention-config", R"({"indexer_kv_dtype": "nvfp4"})", "--speculative-config",
       R"({"method":"dspark","num_speculative_tokens":7,"attention_backend":"FLASHINFER_TS",)"
       R"("kv_cache_dtype":"fp8","draft_sample_method":"probabilistic"})"});
  std::vector<std::string> amd = common;
  amd.insert(amd.end(),
             {"--attention-config", R"({"indexer_kv_dtype": "nvfp4", "indexer_decode_cp": true})",
              "--quantization-config.moe", "mxfp8", "--speculative-config",
              R"({"method":"dspark","num_speculative_tokens":3,"attention_backend":"TRITON_ATTN",)"
              R"("kv_cache_dtype":"fp8","draft_sample_method":"probabilistic"})"});
  Parsed first = parse_only(nvidia);
  EXPECT_EQ(first.engine.kv_cache_dtype, "nvfp4");
  EXPECT_THROW(check_engine_flags(first.engine), Error);  // four devices
  first.engine.tensor_parallel_size = 1;
  EXPECT_TRUE(check_engine_flags(first.engine).empty());
  Parsed second = parse_only(amd);
  EXPECT_EQ(second.engine.quantization_config["moe"], "mxfp8");
  second.engine.tensor_parallel_size = 1;
  EXPECT_EQ(check_engine_flags(second.engine).size(), 2U);  // one rank, experts as stored
}

TEST(Flags, SpeculativeConfigIsCheckedBeforeTheModelIsRead) {
  EXPECT_TRUE(parse({"m", "--speculative-config.method", "dspark"}).checks.empty());
  EXPECT_THROW(parse({"m", "--speculative-config.method", "eagle3"}), Error);
  EXPECT_THAT(usage_error({"m", "--speculative-config.num_speculative_tokens", "3"}),
              ::testing::HasSubstr("give \"method\": \"dspark\""));
  EXPECT_THAT(usage_error({"m", "--speculative-config",
                           R"({"method":"dspark","num_speculative_tokens":0})"}),
              ::testing::HasSubstr("positive integer"));
  EXPECT_THAT(
      usage_error({"m", "--speculative-config", R"({"method":"dspark","tensor_parallel_size":1})"}),
      ::testing::HasSubstr("draft_tensor_parallel_size"));
  EXPECT_THAT(usage_error({"m", "--speculative-config.depth", "1"}),
              ::testing::HasSubstr("unknown member"));
  EXPECT_THROW(parse({"m", "--speculative-config.synthetic_acceptance_length", "3"}), Error);
}

TEST(Flags, MoreRanksThanDevicesAreRefused) {
  for (const char* flag : {"-tp", "-pp", "-dp"}) {
    EXPECT_TRUE(parse({"m", flag, "1"}).checks.empty()) << flag;
    EXPECT_NE(usage_error({"m", flag, "0"}).find("below 1"), std::string::npos) << flag;
    try {
      parse({"m", flag, "2"});
      ADD_FAILURE() << flag << " 2 was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("-parallel-size 2: needs 2"), std::string::npos);
    }
  }
  EXPECT_EQ(parse({"m", "-dcp", "2"}).checks.size(), 1U);
}

TEST(Flags, FileIsBelowTheCommandLine) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "serve.yaml").string();
  std::ofstream(path) << "model: from-file\nmax_num_seqs: 9\nport: 1234\napi-key: [a, b]\n"
                         "enable-prefix-caching: false\n"
                         "attention-config:\n  indexer_kv_dtype: nvfp4\n  dequant: exact\n";
  const Parsed parsed =
      parse({"--config", path, "--port", "99", "--attention-config.dequant", "e4m3"});
  EXPECT_EQ(parsed.engine.model_folder(), "from-file");
  EXPECT_EQ(parsed.engine.max_num_seqs, 9);
  EXPECT_EQ(parsed.server.port, 99);
  EXPECT_EQ(parsed.server.api_keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(parsed.engine.enable_prefix_caching);
  EXPECT_EQ(parsed.engine.attention_config,
            Json::parse(R"({"indexer_kv_dtype":"nvfp4","dequant":"e4m3"})"));
  std::ofstream(path) << "max-num-seq: 9\n";
  EXPECT_NE(usage_error({"m", "--config", path}).find("max-num-seq"), std::string::npos);
  std::ofstream(path) << "a: [\n";
  EXPECT_NE(usage_error({"m", "--config", path}).find("line"), std::string::npos);
}

TEST(Flags, EnvironmentIsBelowTheFileAndTheCommandLine) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "serve.yaml").string();
  std::ofstream(path) << "max_num_seqs: 9\nattention-config:\n  dequant: exact\n";
  const std::map<std::string, std::string> variables = {
      {"WINNOW_MODEL", "from-environment"},
      {"WINNOW_MAX_NUM_SEQS", "7"},
      {"WINNOW_MAX_MODEL_LEN", "32K"},
      {"WINNOW_PORT", "1234"},
      {"WINNOW_ENABLE_PREFIX_CACHING", "false"},
      {"WINNOW_SERVED_MODEL_NAME", R"(["a", "b c"])"},
      {"WINNOW_API_KEY_FILE", "[not a list"},
      {"WINNOW_ATTENTION_CONFIG", R"({"indexer_kv_dtype":"nvfp4","dequant":"e4m3"})"},
      {"WINNOW_MAX_NUM_SEQ", "3"},
      {"WINNOW_CONFIG", path}};
  const Parsed parsed = parse_only({"--port", "99"}, variables);
  EXPECT_EQ(parsed.engine.model_folder(), "from-environment");
  EXPECT_EQ(parsed.engine.max_num_seqs, 9);       // the file
  EXPECT_EQ(parsed.engine.max_model_len, "32K");  // the environment
  EXPECT_EQ(parsed.server.port, 99);              // the command line
  EXPECT_FALSE(parsed.engine.enable_prefix_caching);
  EXPECT_EQ(parsed.server.served_model_names, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(parsed.server.api_key_file, "[not a list");
  EXPECT_EQ(parsed.engine.attention_config,
            Json::parse(R"({"indexer_kv_dtype":"nvfp4","dequant":"exact"})"));
  EXPECT_THAT(parsed.notes, ::testing::ElementsAre(::testing::HasSubstr(
                                "WINNOW_MAX_NUM_SEQ names no flag; did you mean the variable of "
                                "--max-num-seqs?")));
  // MODEL on the command line is the same flag as WINNOW_MODEL.
  EXPECT_EQ(parse_only({"here"}, variables).engine.model_folder(), "here");
  EXPECT_EQ(parse_only({"--model", "here"}, variables).engine.model_folder(), "here");
}

TEST(Flags, VariablesOfOthersAreNoFlags) {
  ::setenv("WINNOW_API_KEY", "secret", 1);
  ::setenv("WINNOW_MAX_NUM_SEQS", "", 1);  // empty: not set
  ::setenv("WINNOW_PORT", "1=2", 1);
  const std::map<std::string, std::string> variables = flag_variables();
  EXPECT_FALSE(variables.contains("WINNOW_API_KEY"));
  EXPECT_FALSE(variables.contains("WINNOW_MAX_NUM_SEQS"));
  EXPECT_EQ(variables.at("WINNOW_PORT"), "1=2");
  for (const char* name : {"WINNOW_API_KEY", "WINNOW_MAX_NUM_SEQS", "WINNOW_PORT"})
    ::unsetenv(name);
}

TEST(Flags, SuggestionsAreClose) {
  EXPECT_EQ(suggestions("--prot", {"--port", "--host", "--uds"}),
            (std::vector<std::string>{"--port"}));
  EXPECT_TRUE(suggestions("--something-else", {"--port"}).empty());
}

}  // namespace
}  // namespace winnow::cli
