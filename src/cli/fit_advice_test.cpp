// The advice is taken word for word: each line, applied, must make the plan work.
#include "cli/fit_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/error.h"

namespace winnow::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CacheRowShape flash_shape() {
  CacheRowShape shape;
  shape.num_layers = 60;
  shape.num_kv_heads = 4;
  shape.head_dim = shape.index_head_dim = shape.block_tokens = 128;
  for (int layer = 3; layer < 60; ++layer) shape.index_layers.push_back(layer);
  return shape;
}

PoolSizeRequest request_of(const CacheRowShape& shape, std::int64_t available, double share) {
  return {.available_bytes = available,
          .utilization = share,
          .cache_memory_bytes = {},
          .num_blocks_override = {},
          .row_bytes = CacheRowLayout(shape).row_bytes(),
          .block_tokens = shape.block_tokens,
          .config_max_model_len = 1 << 20,
          .max_model_len = 1 << 18};
}

bool fits(const PoolSizeRequest& request) {
  try {
    (void)plan_pool_size(request);
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    return false;
  }
}

std::string number_after(const std::string& text, const std::string& flag) {
  std::smatch found;
  const std::regex pattern("(?:^|\n) *" + flag + " ([0-9.]+)(?:\n|$)");
  return std::regex_search(text, found, pattern) ? found[1].str() : std::string();
}

TEST(FitAdvice, EachLineMakesItFit) {
  const CacheRowShape shape = flash_shape();
  const PoolSizeRequest refused = request_of(shape, 60LL << 30, 0.25);
  ASSERT_FALSE(fits(refused));
  const std::string advice = fit_advice(refused, shape);

  PoolSizeRequest shorter = refused;
  shorter.max_model_len = std::stoi(number_after(advice, "--max-model-len"));
  EXPECT_TRUE(fits(shorter)) << advice;
  ++*shorter.max_model_len;
  EXPECT_FALSE(fits(shorter)) << "the longest is told";

  PoolSizeRequest more = refused;
  more.utilization = std::stod(number_after(advice, "--gpu-memory-utilization"));
  EXPECT_TRUE(fits(more)) << advice;
  more.utilization -= 0.001;
  EXPECT_FALSE(fits(more)) << "the smallest share is told";

  CacheRowShape small = shape;
  small.kv_dtype = small.index_dtype = CacheDType::kNvfp4;
  PoolSizeRequest packed = refused;
  packed.row_bytes = CacheRowLayout(small).row_bytes();
  EXPECT_TRUE(fits(packed));
  EXPECT_THAT(advice,
              HasSubstr("--kv-cache-dtype nvfp4 --attention-config.indexer_kv_dtype nvfp4"));
}

TEST(FitAdvice, KeepsToTheFlagThatWasGiven) {
  const CacheRowShape shape = flash_shape();
  PoolSizeRequest request = request_of(shape, 200LL << 30, 0.5);
  request.cache_memory_bytes = 1 << 30;
  std::string advice = fit_advice(request, shape);
  request.cache_memory_bytes = std::stoll(number_after(advice, "--kv-cache-memory-bytes"));
  EXPECT_TRUE(fits(request));
  EXPECT_THAT(advice, Not(HasSubstr("utilization")));

  request.num_blocks_override = 5;
  advice = fit_advice(request, shape);
  request.num_blocks_override = std::stoll(number_after(advice, "--num-gpu-blocks-override"));
  EXPECT_TRUE(fits(request));
}

TEST(FitAdvice, SaysHowMuchMemoryIsMissing) {
  CacheRowShape shape = flash_shape();
  shape.kv_dtype = shape.index_dtype = CacheDType::kNvfp4;
  const PoolSizeRequest request = request_of(shape, 1 << 20, 0.9);
  const std::string advice = fit_advice(request, shape);
  EXPECT_THAT(advice, HasSubstr("GiB more memory"));
  EXPECT_THAT(advice, Not(HasSubstr("--kv-cache-dtype")));  // it is the smallest already
  EXPECT_THAT(advice, Not(HasSubstr("--max-model-len")));   // not even one block
}

}  // namespace
}  // namespace winnow::cli
