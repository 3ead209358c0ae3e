#include <gtest/gtest.h>

#include "ops/rms_norm/rms_norm.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/random_inputs.h"

namespace winnow::ops {
namespace {

std::vector<float> run(const Backend& backend, std::span<const float> x,
                       std::span<const float> weight) {
  testing::TestContext context;
  std::vector<float> out = testing::poisoned(std::ssize(x));
  backend.rms_norm(context.get(), {.x = x.data(),
                                   .weight = weight.data(),
                                   .eps = 1e-6F,
                                   .num_rows = std::ssize(x) / std::ssize(weight),
                                   .width = std::ssize(weight),
                                   .out = out.data()});
  return out;
}

TEST(CudaFastRmsNorm, IsNearTheReferenceAndARowDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  constexpr std::int64_t kRows = 9;
  constexpr double kFp32Error = 1e-6;  // the same sums in another order
  for (const std::int64_t width : {4, 60, 512, 2048, 2052, 6144, 8192, 8196, 33}) {
    testing::RandomInputs random(1300 + static_cast<std::uint64_t>(width));
    SCOPED_TRACE(random.describe());
    const std::vector<float> x = random.normals(kRows * width, 3.0F);
    const std::vector<float> weight = random.normals(width);
    const std::vector<float> whole = run(fast, x, weight);
    EXPECT_LT(testing::relative_error(run(exact, x, weight), whole), kFp32Error);
    const auto row = static_cast<std::size_t>(width);
    ASSERT_TRUE(testing::bits_equal(std::span(whole).subspan(3 * row, row),
                                    run(fast, std::span(x).subspan(3 * row, row), weight),
                                    {1, width}));
  }
}

}  // namespace
}  // namespace winnow::ops
