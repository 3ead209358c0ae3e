#include "engine/pool_size.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.h"

namespace winnow {
namespace {

PoolSizeRequest request_of(std::int64_t available_bytes) {
  return {.available_bytes = available_bytes,
          .utilization = 0.5,
          .cache_memory_bytes = {},
          .num_blocks_override = {},
          .row_bytes = 1000,
          .block_tokens = 128,
          .config_max_model_len = 4096,
          .max_model_len = {}};
}

TEST(PoolSize, UsesTheShareOfWhatIsAvailable) {
  const PoolSize size = plan_pool_size(request_of(100'000));
  EXPECT_EQ(size.num_blocks, 50);
  EXPECT_EQ(size.num_tokens, 6400);
  EXPECT_EQ(size.num_bytes, 50'000);
  EXPECT_EQ(size.max_model_len, 4096);
  EXPECT_DOUBLE_EQ(size.sequences_at_max_len, 6400.0 / 4096.0);
}

TEST(PoolSize, ExactSizesWinOverTheShare) {
  PoolSizeRequest request = request_of(1);
  request.cache_memory_bytes = 64'999;
  EXPECT_EQ(plan_pool_size(request).num_blocks, 64);
  request.num_blocks_override = 7;
  EXPECT_EQ(plan_pool_size(request).num_blocks, 7);
}

TEST(PoolSize, TakesTheLargestLengthThatFitsWhenNoneIsAskedFor) {
  PoolSizeRequest request = request_of(20'000);
  EXPECT_EQ(plan_pool_size(request).max_model_len, 1280);
}

TEST(PoolSize, NamesTheLargestLengthWhenTheOneAskedForDoesNotFit) {
  PoolSizeRequest request = request_of(20'000);
  request.max_model_len = 1281;
  try {
    (void)plan_pool_size(request);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(error.param(), "max_model_len");
    EXPECT_NE(std::string(error.what()).find("that fits is 1280"), std::string::npos)
        << error.what();
  }
  request.max_model_len = 1280;
  EXPECT_EQ(plan_pool_size(request).max_model_len, 1280);
}

TEST(PoolSize, RefusesNothingAtAllAndNonsense) {
  EXPECT_THROW((void)plan_pool_size(request_of(0)), Error);
  EXPECT_THROW((void)plan_pool_size(request_of(-5)), Error);
  for (const double utilization : {0.0, -1.0, 1.01, std::numeric_limits<double>::quiet_NaN()}) {
    PoolSizeRequest request = request_of(100'000);
    request.utilization = utilization;
    EXPECT_THROW((void)plan_pool_size(request), Error);
  }
  PoolSizeRequest request = request_of(100'000);
  request.num_blocks_override = 0;
  EXPECT_THROW((void)plan_pool_size(request), Error);
}

TEST(PoolSize, CountsBeyondTwoGiBAndStopsAtThe32BitIds) {  // cases.md B3
  PoolSizeRequest request = request_of(std::int64_t{3} << 40);
  request.row_bytes = 4'423'680;
  EXPECT_EQ(plan_pool_size(request).num_bytes,
            std::int64_t{plan_pool_size(request).num_blocks} * 4'423'680);
  request.row_bytes = 1;
  EXPECT_EQ(plan_pool_size(request).num_blocks, std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(plan_pool_size(request).num_tokens, std::int64_t{128} * 2147483647);
}

}  // namespace
}  // namespace winnow
