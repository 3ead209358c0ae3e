// inspect and quantize as they are typed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "cli/inspect.h"
#include "cli/progress_bar.h"
#include "cli/quantize.h"

namespace winnow {
namespace {

using testing::HasSubstr;

class CheckpointCommands : public testing::Test {
 protected:
  CheckpointCommands() { write_random_checkpoint(folder_.path() / "in", random_m31()); }

  int run(const std::vector<std::string>& arguments) {
    CLI::App app;
    int exit_code = -1;
    add_inspect_command(app, exit_code);
    add_quantize_command(app, exit_code);
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    testing::internal::CaptureStdout();
    try {
      app.parse(reversed);
    } catch (...) {
      printed_ = testing::internal::GetCapturedStdout();
      throw;
    }
    printed_ = testing::internal::GetCapturedStdout();
    return exit_code;
  }

  std::string path(const char* name) const { return (folder_.path() / name).string(); }

  TemporaryFolder folder_;
  std::string printed_;
};

TEST_F(CheckpointCommands, InspectPrintsAndSaysWhetherItIsUsable) {
  EXPECT_EQ(run({"inspect", path("in")}), 0);
  EXPECT_THAT(printed_, HasSubstr("usable: yes"));
  EXPECT_EQ(run({"inspect", path("in"), "--json"}), 0);
  EXPECT_EQ(nlohmann::json::parse(printed_)["usable"], true);
  EXPECT_EQ(run({"inspect", path("absent")}), 1);
  EXPECT_THAT(printed_, HasSubstr("problem:"));
  EXPECT_EQ(run({"inspect", path("absent"), "--json"}), 1);
  EXPECT_EQ(nlohmann::json::parse(printed_)["usable"], false);
}

TEST_F(CheckpointCommands, QuantizeWritesShardsOfTheGivenSize) {
  EXPECT_EQ(run({"quantize", path("in"), path("out"), "--max-shard-size", "200KB"}), 0);
  EXPECT_THAT(printed_, HasSubstr("files"));
  EXPECT_EQ(run({"inspect", path("out")}), 0);
  EXPECT_THROW(run({"quantize", path("in"), path("out")}), Error);
  EXPECT_EQ(run({"quantize", path("in"), path("out"), "--force"}), 0);
  EXPECT_THROW(run({"quantize", path("in"), path("x"), "--max-shard-size", "0"}), Error);
  EXPECT_THROW(run({"quantize", path("in"), path("x"), "--max-shard-size", "5 apples"}),
               CLI::ParseError);
  EXPECT_THROW(run({"quantize", path("in")}), CLI::ParseError);
}

TEST(ProgressBar, Line) {
  EXPECT_EQ(progress_line("loading", 5'000'000, 10'000'000, 2.0),
            "loading [###############---------------]  50 %  5.00 MB of 10.00 MB, 2.50 MB/s");
  EXPECT_THAT(progress_line("loading", 0, 0, 0), HasSubstr("100 %"));
}

TEST(ProgressBar, SilentWithoutATerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar("x", false);
    bar.update(1, 2);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace winnow
