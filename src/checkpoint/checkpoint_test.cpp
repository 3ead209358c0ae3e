// Folders: single file, shards with an index, and what can be wrong between them.
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/json_file.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"

namespace winnow {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

class ShardedCheckpoint : public testing::Test {
 protected:
  ShardedCheckpoint() {
    RandomCheckpoint options;
    options.num_shards = 2;
    write_random_checkpoint(folder_.path(), options);
    index_ = read_json_object(index_path());
  }

  std::filesystem::path index_path() const {
    return folder_.path() / "model.safetensors.index.json";
  }
  void save_index() { std::ofstream(index_path()) << index_; }

  std::vector<std::string> problems() {
    ProblemList problems;
    const Checkpoint checkpoint(folder_.path(), problems);
    return {problems.all().begin(), problems.all().end()};
  }

  TemporaryFolder folder_;
  nlohmann::json index_;
  const std::string norm_ = "language_model.model.norm.weight";
  const std::string second_ = "model-00002-of-00002.safetensors";
};

TEST_F(ShardedCheckpoint, FindsEveryTensor) {
  const Checkpoint checkpoint(folder_.path());
  EXPECT_EQ(checkpoint.files().size(), 2U);
  EXPECT_EQ(checkpoint.names().size(), index_["weight_map"].size());
  EXPECT_EQ(checkpoint.find(norm_).file->path().filename(), second_);
  EXPECT_EQ(checkpoint.view(norm_).shape, std::vector<std::int64_t>{64});
  EXPECT_EQ(checkpoint.find("x").tensor, nullptr);
}

TEST_F(ShardedCheckpoint, MissingShard) {
  std::filesystem::remove(folder_.path() / second_);
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr(second_ + ": missing"), HasSubstr("expects"))));
}

TEST_F(ShardedCheckpoint, TensorInTheIndexButNotInItsShard) {
  index_["weight_map"]["ghost.weight"] = second_;
  save_index();
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr(second_), HasSubstr("no tensor ghost.weight"))));
}

TEST_F(ShardedCheckpoint, TensorNotListedInTheIndex) {
  index_["weight_map"].erase(norm_);
  save_index();
  EXPECT_THAT(problems(),
              ElementsAre(AllOf(HasSubstr(second_), HasSubstr(norm_ + " is not listed"))));
}

TEST_F(ShardedCheckpoint, TensorInTwoShards) {
  std::filesystem::copy_file(folder_.path() / second_, folder_.path() / "copy.safetensors");
  index_["weight_map"][norm_] = "copy.safetensors";
  save_index();
  EXPECT_THAT(problems(), Contains(AllOf(HasSubstr(norm_ + " is also in copy.safetensors"))));
}

TEST_F(ShardedCheckpoint, ShardNamesDoNotLeadOutOfTheFolder) {
  for (const nlohmann::json& shard :
       {nlohmann::json("../other/model.safetensors"), nlohmann::json("/etc/passwd"),
        nlohmann::json(".."), nlohmann::json(""), nlohmann::json(3), nlohmann::json(nullptr)}) {
    index_["weight_map"][norm_] = shard;
    save_index();
    EXPECT_THAT(problems(), Contains(AllOf(HasSubstr("index.json"), HasSubstr(norm_),
                                           HasSubstr("name of a file in the folder"))));
  }
}

TEST_F(ShardedCheckpoint, IndexWithoutAMap) {
  index_.erase("weight_map");
  save_index();
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("no object weight_map")));
  std::ofstream(index_path()) << "[1, 2";
  EXPECT_THROW(problems(), Error);
}

TEST_F(ShardedCheckpoint, TruncatedShardIsNamed) {
  std::filesystem::resize_file(folder_.path() / second_,
                               std::filesystem::file_size(folder_.path() / second_) - 1);
  EXPECT_THAT(problems(), Contains(AllOf(HasSubstr(second_), HasSubstr("truncated"))));
}

TEST(Checkpoint, FolderWithoutWeights) {
  const TemporaryFolder folder;
  try {
    Checkpoint checkpoint(folder.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_THAT(error.text(), HasSubstr("model.safetensors"));
  }
  EXPECT_THROW(Checkpoint(folder.path() / "absent"), Error);
}

TEST(JsonFile, LimitsDepthAndForm) {
  std::string deep = "{\"a\":";
  deep.append(100'000, '[');
  EXPECT_THROW(parse_json_object(deep, "x"), Error);
  EXPECT_THROW(parse_json_object("[]", "x"), Error);
  EXPECT_THROW(parse_json_object("{\"a\":1} x", "x"), Error);
  EXPECT_THROW(parse_json_object("", "x"), Error);
  EXPECT_THROW(parse_json_object("{\"a\": 1e2288}", "x"), Error);  // found by config_fuzz
  try {
    parse_json_object("{\"a\": tru}", "config.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), AllOf(HasSubstr("config.json"), HasSubstr("column 10")));
  }
}

}  // namespace
}  // namespace winnow
