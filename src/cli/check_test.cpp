#include "cli/check.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "base/error.h"

namespace winnow {
namespace {

constexpr const char* kNanoText = WINNOW_SOURCE_DIR "/tests/golden/nano-text";

int run(const std::string& arguments) {
  CLI::App app;
  int exit_code = -1;
  add_check_command(app, exit_code);
  app.parse("check " + arguments);
  return exit_code;
}

TEST(CheckCommand, SucceedsWithinTheToleranceAndFailsBeyond) {
  EXPECT_EQ(run(kNanoText), 0);
  EXPECT_EQ(run(std::string(kNanoText) + " --chunk-tokens 33 --threads 1"), 0);
  EXPECT_EQ(run(std::string(kNanoText) + " --tolerance 1e-9"), 1);
  EXPECT_EQ(run(std::string(kNanoText) + " --kv-cache-dtype nvfp4 --dequant e4m3"), 1);
}

TEST(CheckCommand, ComparesAnAdapterWithTheAdaptedModelsOutputs) {
  const std::string lora = WINNOW_SOURCE_DIR "/tests/golden/nano-lora/attention";
  const std::string golden = " --golden " + lora + "/golden.safetensors";
  EXPECT_EQ(run(kNanoText + golden + " --lora " + lora), 0);
  EXPECT_EQ(run(kNanoText + golden), 1);
  EXPECT_THROW(run(kNanoText + golden + " --lora " + kNanoText), Error);
}

TEST(CheckCommand, RefusesNamesAndFoldersItDoesNotKnow) {
  EXPECT_THROW(run(std::string(kNanoText) + " --kv-cache-dtype int4"), Error);
  EXPECT_THROW(run(std::string(kNanoText) + " --dequant rounded"), Error);
  EXPECT_THROW(run(std::string(kNanoText) + " --backend tpu"), Error);
  EXPECT_THROW(run(std::string(kNanoText) + " --tolerance -1"), Error);
  EXPECT_THROW(run(WINNOW_SOURCE_DIR "/tests/golden"), Error);
}

}  // namespace
}  // namespace winnow
