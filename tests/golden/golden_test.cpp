// The decoder against the public implementation: nano-text on every backend this machine has,
// m3-heads (M3's own attention shape over 36 blocks) on the reference and on the best one.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/check.h"

namespace winnow {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(WINNOW_SOURCE_DIR) / "tests/golden";

/// The bundled model's golden outputs lie beside the others.
std::filesystem::path folder_of(const std::string& model) {
  return model == "winnow-tiny" ? kGolden / "../../models" / model : kGolden / model;
}

void expect_passes(const std::string& model, CheckOptions options) {
  SCOPED_TRACE(
      fmt::format("{} on {} in chunks of {}", model, options.backend, options.chunk_tokens));
  options.golden = kGolden / model / "golden.safetensors";
  const CheckReport report = check_model(folder_of(model), options);
  EXPECT_TRUE(report.passed) << report.text();
}

/// Whether the machine can run the backend; a backend that it cannot run is skipped.
bool is_available(const std::string& backend) {
  try {
    (void)check_model(kGolden / "nano-text", {.backend = backend, .chunk_tokens = 300});
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    return false;
  }
}

const std::string kBackends[] = {"scalar", "cpu-portable", "cpu-avx2", "cpu-avx512"};
const std::string kExactBackends[] = {"scalar", "cpu-portable", "cpu-avx2", "cpu-avx512",
                                      "cuda-exact"};

std::string name_of_backend(const ::testing::TestParamInfo<std::string>& backend) {
  std::string name = backend.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

class NanoText : public ::testing::TestWithParam<std::string> {};

TEST_P(NanoText, MatchesWholeAndInChunks) {
  if (!is_available(GetParam())) GTEST_SKIP() << "this machine cannot run " << GetParam();
  for (const std::int32_t chunk : {0, 1, 7, 16, 100}) {
    expect_passes("nano-text", {.backend = GetParam(), .chunk_tokens = chunk});
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, NanoText, ::testing::ValuesIn(kBackends), name_of_backend);

/// PEFT's adapters on nano-text (train/golden_lora.py) against peft's own outputs.
class NanoLora : public ::testing::TestWithParam<std::string> {
 protected:
  static void expect_adapter_passes(const std::string& adapter, const std::string& golden) {
    if (!is_available(GetParam())) GTEST_SKIP() << "this machine cannot run " << GetParam();
    const std::filesystem::path folder = kGolden / "nano-lora";
    for (const std::int32_t chunk : {0, 7}) {
      const CheckReport report =
          check_model(kGolden / "nano-text", {.golden = folder / golden / "golden.safetensors",
                                              .adapter = folder / adapter,
                                              .backend = GetParam(),
                                              .chunk_tokens = chunk});
      EXPECT_TRUE(report.passed) << adapter << "\n" << report.text();
    }
  }
};

TEST_P(NanoLora, AttentionAndIndexerMatch) { expect_adapter_passes("attention", "attention"); }

TEST_P(NanoLora, StackedExpertsAndMlpsMatch) { expect_adapter_passes("experts", "experts"); }

TEST_P(NanoLora, ExpertsOneByOneUnderPublishedNamesMatch) {
  expect_adapter_passes("experts-published", "experts");
}

INSTANTIATE_TEST_SUITE_P(Backends, NanoLora, ::testing::ValuesIn(kExactBackends), name_of_backend);

// The base model's outputs are none of an adapter's: the comparison above tells them apart.
TEST(NanoLoraBase, WithoutTheAdapterTheOutputsAreOthers) {
  for (const char* adapter : {"attention", "experts"}) {
    const CheckReport report = check_model(
        kGolden / "nano-text",
        {.golden = kGolden / "nano-lora" / adapter / "golden.safetensors", .backend = "scalar"});
    EXPECT_FALSE(report.passed) << report.text();
  }
}

// NVFP4 experts, MXFP8 linears, BF16 embeddings: trained weights in M3.1's own layout.
TEST(WinnowTiny, ReferenceAndBestBackendMatchInChunks) {
  expect_passes("winnow-tiny", {.backend = "scalar"});
  if (!is_available("auto")) GTEST_SKIP() << "no SIMD kernels for this machine";
  for (const std::int32_t chunk : {0, 128, 100}) {
    expect_passes("winnow-tiny", {.backend = "auto", .chunk_tokens = chunk});
  }
}

TEST(M3Heads, ReferenceMatchesInOneStep) { expect_passes("m3-heads", {.backend = "scalar"}); }

TEST(M3Heads, ReferenceMatchesInChunks) {
  expect_passes("m3-heads", {.backend = "scalar", .chunk_tokens = 1000});
}

TEST(M3Heads, BestBackendMatchesWholeAndInChunks) {
  if (!is_available("auto")) GTEST_SKIP() << "no SIMD kernels for this machine";
  for (const std::int32_t chunk : {0, 128, 1000}) {
    expect_passes("m3-heads", {.backend = "auto", .chunk_tokens = chunk});
  }
}

}  // namespace
}  // namespace winnow
