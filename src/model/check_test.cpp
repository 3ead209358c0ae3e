// The check itself: it must fail when something is wrong, and say what.
#include "model/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/testing/temporary_folder.h"
#include "model/comparison.h"

namespace winnow {
namespace {

namespace fs = std::filesystem;

/// nano-text in a folder of its own, to be damaged.
class DamagedGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy(fs::path(WINNOW_SOURCE_DIR) / "tests/golden/nano-text", folder_);
  }

  /// Overwrites four bytes of a golden tensor's element.
  void damage(const std::string& tensor, std::int64_t element, std::uint32_t bits) const {
    std::int64_t offset = 0;
    {
      const SafetensorsFile file(golden());
      offset = file.find(tensor)->offset + element * 4;
    }
    std::fstream file(golden(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.write(reinterpret_cast<const char*>(&bits), sizeof(bits));
  }

  fs::path golden() const { return folder_ / "golden.safetensors"; }

  static std::vector<std::string> failures(const CheckReport& report) {
    std::vector<std::string> names;
    for (const CheckLine& line : report.lines) {
      if (!line.passed) names.push_back(line.what);
    }
    return names;
  }

  const TemporaryFolder temporary_;
  const fs::path& folder_ = temporary_.path();
  static constexpr std::uint32_t kOne = 0x3F800000;
  static constexpr std::uint32_t kNaN = 0x7FC00000;
};

using Names = std::vector<std::string>;

TEST_F(DamagedGolden, UndamagedPasses) { EXPECT_EQ(failures(check_model(folder_, {})), Names{}); }

TEST_F(DamagedGolden, OneWrongLogitFails) {
  damage("logits", 512 * 3 + 17, kOne);
  EXPECT_EQ(failures(check_model(folder_, {})), Names{"logits"});
}

TEST_F(DamagedGolden, NaNFails) {
  damage("hidden.2", 40, kNaN);
  EXPECT_EQ(failures(check_model(folder_, {})), Names{"layer 2 hidden"});
}

TEST_F(DamagedGolden, OneOtherBlockFails) {
  const std::int64_t at = (300 + 250) * 4;  // head 1, position 250: 16 blocks, of which 4 are kept
  std::uint32_t other = 0;
  {
    const SafetensorsFile file(golden());
    const auto* const kept = reinterpret_cast<const std::int32_t*>(file.view("blocks.3").data) + at;
    while (std::find(kept, kept + 4, static_cast<std::int32_t>(other)) != kept + 4) ++other;
  }
  damage("blocks.3", at, other);
  EXPECT_EQ(failures(check_model(folder_, {})), Names{"layer 3 blocks"});
}

TEST_F(DamagedGolden, OneOtherExpertFails) {
  const std::int64_t at = 100 * 2;
  std::uint32_t other = 0;
  {
    const SafetensorsFile file(golden());
    const auto* const chosen =
        reinterpret_cast<const std::int32_t*>(file.view("router_index.1").data) + at;
    while (std::find(chosen, chosen + 2, static_cast<std::int32_t>(other)) != chosen + 2) ++other;
  }
  damage("router_index.1", at, other);
  EXPECT_EQ(failures(check_model(folder_, {})), Names{"layer 1 experts"});
}

TEST_F(DamagedGolden, AnotherGreedyTokenFails) {
  damage("greedy_tokens", 23, 0);
  EXPECT_EQ(failures(check_model(folder_, {})), Names{"greedy tokens"});
}

TEST_F(DamagedGolden, IdsOutsideTheModelAreRefused) {
  damage("input_ids", 5, 512);
  EXPECT_THROW((void)check_model(folder_, {}), Error);
  damage("input_ids", 5, 1);
  damage("router_index.4", 0, 8);
  EXPECT_THROW((void)check_model(folder_, {}), Error);
  damage("router_index.4", 0, 1);
  damage("blocks.3", 250 * 4, 16);  // position 250 is in block 15
  EXPECT_THROW((void)check_model(folder_, {}), Error);
}

TEST_F(DamagedGolden, AMissingFileIsNamed) {
  fs::remove(golden());
  try {
    (void)check_model(folder_, {});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(error.text().find("golden.safetensors"), std::string::npos);
  }
}

TEST(Comparison, RelativeErrorIsOfTheLargestReferenceMagnitude) {
  ValueComparison values;
  values.add(std::vector{1.0F, -3.0F}, std::vector{1.5F, -4.0F});
  const CheckLine line = values.line("x", 0.25);
  EXPECT_EQ(line.max_error, 1.0);
  EXPECT_EQ(line.relative_error, 0.25);
  EXPECT_DOUBLE_EQ(line.median_error, std::sqrt(1.25 / 18.25));
  EXPECT_TRUE(line.passed);
  EXPECT_FALSE(values.line("x", 0.24).passed);
}

TEST(Comparison, AChoicePassesWhenEveryDifferenceIsATie) {
  ChoiceComparison choices;
  choices.add_equal();
  choices.add_different(true);
  EXPECT_TRUE(choices.line("x").passed);
  choices.add_different(false);
  EXPECT_FALSE(choices.line("x").passed);
  EXPECT_EQ(choices.line("x").num_compared, 3);
}

}  // namespace
}  // namespace winnow
