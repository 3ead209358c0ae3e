// --speculative-config from the flag to drafts in the engine, on a checkpoint made here.
#include "cli/speculation_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "cli/engine_setup.h"
#include "engine/testing/collector.h"
#include "server/testing/test_server.h"

namespace winnow::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SpeculationSetup : public ::testing::Test {
 protected:
  SpeculationSetup() {
    RandomCheckpoint options;
    options.vocab_size = server::testing::kTestVocab;
    options.drafter = RandomDrafter{};
    options.kv_cache_quant_algo = "NVFP4";
    write(path("with"), options);
    options.drafter.reset();
    write(path("without"), options);
    std::filesystem::copy(path("with") / "dspark", path("alone"));
  }

  static void write(const std::filesystem::path& folder, const RandomCheckpoint& options) {
    write_random_checkpoint(folder, options);
    std::ofstream(folder / "tokenizer.json") << server::testing::byte_tokenizer_json();
  }

  std::filesystem::path path(const char* name) const { return folder_.path() / name; }

  EngineFlags flags(const char* model, const char* speculative_config) const {
    EngineFlags flags;
    flags.words = {path(model).string()};
    flags.speculative_config = Json::parse(speculative_config);
    flags.max_model_len = "128";
    flags.max_num_seqs = 4;
    flags.max_num_batched_tokens = 64;
    flags.threads = 1;
    flags.backend = "cpu";
    return flags;
  }

  std::string error_of(const EngineFlags& flags) const {
    try {
      EngineSetup(flags, nullptr, {});
    } catch (const Error& error) {
      return error.text();
    }
    return {};
  }

  static std::vector<std::vector<TokenId>> answers(EngineSetup& setup) {
    std::vector<std::shared_ptr<winnow::testing::Collected>> all;
    for (int i = 0; i < 6; ++i) {
      GenerationRequest request;
      for (int t = 0; t < 20 + i; ++t) request.prompt.push_back((t * 31 + i * 7) % 250);
      request.sampling.max_tokens = 40;
      request.sampling.temperature = i % 2 == 0 ? 0.0F : 1.0F;
      request.sampling.seed = i;
      request.sampling.ignore_eos = true;
      all.push_back(std::make_shared<winnow::testing::Collected>());
      winnow::testing::collect(request, all.back());
      (void)setup.engine().submit(std::move(request));
    }
    setup.engine().drain(60);
    std::vector<std::vector<TokenId>> out;
    for (const auto& collected : all) {
      EXPECT_THAT(collected->check(), IsEmpty());
      out.push_back(collected->choices.front().tokens);
    }
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(SpeculationSetup, DraftsAndSaysTheSame) {
  EngineSetup plain(flags("with", "{}"), nullptr, {});
  const auto expected = answers(plain);
  EXPECT_EQ(plain.engine().stats().num_drafts, 0);
  EXPECT_THAT(plain.facts().speculation, IsEmpty());
  for (const char* config :
       {R"({"method":"dspark","kv_cache_dtype":"fp8","rejection_sample_method":"coupled"})",
        R"({"method":"dspark","num_speculative_tokens":3,"kv_cache_dtype":"bf16",)"
        R"("draft_sample_method":"probabilistic","rejection_sample_method":"coupled"})"}) {
    EngineSetup drafting(flags("with", config), nullptr, {});
    EXPECT_EQ(answers(drafting), expected) << config;
    EXPECT_GT(drafting.engine().stats().num_drafts, 0);
    EXPECT_THAT(drafting.facts().speculation, HasSubstr("coupled"));
    EXPECT_GT(drafting.facts().drafter_bytes, 0);
    EXPECT_GT(drafting.facts().row_bytes, plain.facts().row_bytes);
  }
}

TEST_F(SpeculationSetup, ADrafterElsewhereIsNamedByItsFolder) {
  EngineSetup plain(flags("without", "{}"), nullptr, {});
  const auto expected = answers(plain);
  for (const char* name : {"alone", "with"}) {
    EngineFlags with_model =
        flags("without",
              R"({"method":"dspark","kv_cache_dtype":"fp8","rejection_sample_method":"coupled"})");
    with_model.speculative_config["model"] = path(name).string();
    EngineSetup drafting(with_model, nullptr, {});
    EXPECT_EQ(answers(drafting), expected) << name;
    EXPECT_GT(drafting.engine().stats().num_drafts, 0);
  }
}

TEST_F(SpeculationSetup, WhatCannotWorkIsSaidBeforeWeightsAreRead) {
  EXPECT_THAT(error_of(flags("without", R"({"method":"dspark"})")), HasSubstr("has no drafter"));
  EXPECT_THAT(error_of(flags("with", R"({"method":"dspark"})")), HasSubstr("nvfp4"));
  EXPECT_THAT(error_of(flags("with", R"({"method":"dspark","kv_cache_dtype":"fp8",)"
                                     R"("num_speculative_tokens":8})")),
              HasSubstr("block of 7"));
  EXPECT_THAT(error_of(flags("with", R"({"method":"dspark","kv_cache_dtype":"fp8",)"
                                     R"("quantization":"fp8"})")),
              HasSubstr("mxfp8"));
  EXPECT_THAT(error_of(flags("with", R"({"method":"dspark","kv_cache_dtype":"fp8",)"
                                     R"("max_model_len":129})")),
              HasSubstr("129"));
  EngineFlags target_as_drafter = flags("with", R"({"method":"dspark","kv_cache_dtype":"fp8"})");
  target_as_drafter.speculative_config["model"] = path("without").string();
  EXPECT_THAT(error_of(target_as_drafter), HasSubstr("no dspark/config.json"));
  target_as_drafter.speculative_config["model"] = path("nowhere").string();
  EXPECT_THAT(error_of(target_as_drafter), HasSubstr("no folder"));
}

TEST_F(SpeculationSetup, ADrafterOfAnotherTargetIsRefused) {
  RandomCheckpoint other;
  other.vocab_size = server::testing::kTestVocab + 16;
  other.drafter = RandomDrafter{};
  write_random_checkpoint(path("other"), other);
  EngineFlags wrong = flags("without", R"({"method":"dspark","kv_cache_dtype":"fp8"})");
  wrong.speculative_config["model"] = path("other").string();
  EXPECT_THAT(error_of(wrong), HasSubstr("vocab_size"));
}

TEST_F(SpeculationSetup, RowsOfLogitsAreCounted) {
  const auto memory = ops::make_host_memory();
  EngineOptions options;
  options.max_num_seqs = 8;
  options.max_num_batched_tokens = 2048;
  const std::int64_t plain = logits_bytes(options, 1000, *memory);
  options.speculation.num_drafts = 7;
  // Seven rows more of each sequence for the target, and the drafter's own seven.
  EXPECT_EQ(logits_bytes(options, 1000, *memory) - plain, 8 * 14 * 1000 * 4);
  options.speculation.is_greedy_draft = false;
  EXPECT_EQ(logits_bytes(options, 1000, *memory) - plain, 8 * 21 * 1000 * 4);
}

}  // namespace
}  // namespace winnow::cli
