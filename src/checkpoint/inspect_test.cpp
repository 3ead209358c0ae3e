#include "checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

TEST(Inspect, M31LayoutByPartAndScheme) {
  const TemporaryFolder folder;
  RandomCheckpoint options = random_m31();
  options.with_vision = true;
  options.num_shards = 2;
  write_random_checkpoint(folder.path(), options);
  std::ofstream(folder.path() / "tokenizer.json") << "{}";
  std::ofstream(folder.path() / "chat_template.jinja") << "x";
  const Inspection inspection = inspect_checkpoint(folder.path());
  EXPECT_TRUE(inspection.is_usable());
  EXPECT_THAT(inspection.warnings, testing::IsEmpty());
  const auto group = [&](std::string_view part) {
    for (const auto& candidate : inspection.weights) {
      if (candidate.part == part) return candidate;
    }
    return Inspection::WeightGroup{};
  };
  EXPECT_EQ(group("routed experts").scheme, "nvfp4");
  EXPECT_EQ(group("routed experts").num_matrices, 2 * 8 * 3);
  EXPECT_EQ(group("routed experts").num_parameters, 2 * 8 * 3 * 64 * 128);
  EXPECT_EQ(group("routed experts").num_bytes, 2 * 8 * 3 * 64 * 128 * 9 / 16);
  EXPECT_EQ(group("attention").scheme, "mxfp8");
  EXPECT_EQ(group("router").scheme, "f32");
  EXPECT_EQ(group("lm_head").scheme, "bf16");
  EXPECT_EQ(inspection.ignored.size(), 2U);  // vision, MTP
  EXPECT_EQ(inspection.num_files, 2);

  const std::string text = render_inspection(inspection);
  EXPECT_THAT(
      text, AllOf(HasSubstr("routed experts  nvfp4"), HasSubstr("usable: yes"), HasSubstr("vision"),
                  HasSubstr("chat_template.jinja"), HasSubstr("nvfp4 by default")));
  const auto json = inspection_to_json(inspection);
  EXPECT_EQ(json["usable"], true);
  EXPECT_EQ(json["config"]["default_cache_dtype"], "nvfp4");
  EXPECT_EQ(json["weights"].size(), inspection.weights.size());
}

// spec/model.md section 5, per token of one layer's share: 2 KV heads of 128 in 3 layers.
TEST(Inspect, CacheBytesPerToken) {
  const TemporaryFolder folder;
  write_random_checkpoint(folder.path(), random_m31());
  const Inspection inspection = inspect_checkpoint(folder.path());
  ASSERT_EQ(inspection.cache.size(), 3U);
  EXPECT_EQ(inspection.cache[0].kv, 3 * 2 * 2 * 256);
  EXPECT_EQ(inspection.cache[0].index, 3 * 256);
  EXPECT_EQ(inspection.cache[2].dtype, CacheDType::kNvfp4);
  EXPECT_EQ(inspection.cache[2].kv, 3 * 2 * 2 * 72);
  EXPECT_EQ(inspection.cache[2].index, 3 * 72);
}

TEST(Inspect, EveryProblemIsReportedNotOnlyTheFirst) {
  const TemporaryFolder folder;
  RandomCheckpoint options = random_m31();
  write_random_checkpoint(folder.path(), options);
  options.hidden_size = 256;  // a config of another size: every matrix disagrees
  const TemporaryFolder other;
  write_random_checkpoint(other.path(), options);
  std::filesystem::copy_file(other.path() / "config.json", folder.path() / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const Inspection inspection = inspect_checkpoint(folder.path());
  EXPECT_FALSE(inspection.is_usable());
  EXPECT_GT(inspection.problems.size(), 50U);
  EXPECT_THAT(render_inspection(inspection), HasSubstr("usable: no"));
}

TEST(Inspect, BrokenConfigStillReportsTheFiles) {
  const TemporaryFolder folder;
  write_random_checkpoint(folder.path(), random_m31());
  std::ofstream(folder.path() / "config.json") << "{";
  std::filesystem::resize_file(folder.path() / "model.safetensors", 5000);
  const Inspection inspection = inspect_checkpoint(folder.path());
  EXPECT_FALSE(inspection.config.has_value());
  EXPECT_THAT(inspection.problems, AllOf(Contains(HasSubstr("config.json: not valid JSON")),
                                         Contains(HasSubstr("truncated"))));
}

TEST(Inspect, FolderThatIsNotThere) {
  const Inspection inspection = inspect_checkpoint("/nonexistent/model");
  EXPECT_FALSE(inspection.is_usable());
  EXPECT_FALSE(render_inspection(inspection).empty());
  EXPECT_EQ(inspection_to_json(inspection)["usable"], false);
}

TEST(Inspect, MissingFrontEndFilesAreWarnings) {
  const TemporaryFolder folder;
  write_random_checkpoint(folder.path(), random_m31());
  const Inspection inspection = inspect_checkpoint(folder.path());
  EXPECT_TRUE(inspection.is_usable());
  EXPECT_THAT(inspection.warnings,
              AllOf(Contains(HasSubstr("tokenizer.json")), Contains(HasSubstr("chat template"))));
}

TEST(BytesText, RoundsToTheUnit) {
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1'822'720), "1.82 MB");
  EXPECT_EQ(bytes_text(250'100'200'000), "250.10 GB");
  EXPECT_EQ(bytes_text(999'999'999), "1.00 GB");
}

}  // namespace
}  // namespace winnow
