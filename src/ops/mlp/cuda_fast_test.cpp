#include <gtest/gtest.h>

#include <algorithm>

#include "ops/mlp/mlp.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/random_mlp.h"

namespace winnow::ops {
namespace {

std::vector<float> run(const Backend& backend, const testing::RandomMlp& mlp,
                       std::span<const float> h, std::int64_t hidden) {
  testing::TestContext context;
  const testing::PackedMlp packed(backend, mlp);
  std::vector<float> y = testing::poisoned(std::ssize(h));
  backend.mlp(context.get(), {.h = h.data(),
                              .num_tokens = std::ssize(h) / hidden,
                              .weights = packed.weights(),
                              .constants = {.alpha = 1.702F, .limit = 7.0F},
                              .y = y.data()});
  return y;
}

TEST(CudaFastMlp, IsNearTheReferenceAndATokenDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  constexpr std::int64_t kTokens = 300;
  struct Shape {
    QuantScheme scheme;
    std::int64_t hidden, width;
  };
  std::uint64_t stream = 1100;
  for (const auto& [scheme, hidden, width] :
       {Shape{QuantScheme::kMxfp8, 1024, 512}, Shape{QuantScheme::kBF16, 256, 768},
        Shape{QuantScheme::kNvfp4, 512, 256}}) {
    testing::RandomInputs random(++stream);
    SCOPED_TRACE(random.describe());
    const testing::RandomMlp mlp(scheme, hidden, width, random);
    const std::vector<float> h = random.normals(kTokens * hidden, 2.0F);
    const std::vector<float> whole = run(fast, mlp, h, hidden);
    EXPECT_LT(testing::relative_error(run(exact, mlp, h, hidden), whole), testing::kBf16Error);
    for (const std::int64_t count : testing::kTokenCounts) {
      const auto first =
          static_cast<std::size_t>(std::min<std::int64_t>(5, kTokens - count) * hidden);
      const auto size = static_cast<std::size_t>(count * hidden);
      ASSERT_TRUE(testing::bits_equal(std::span(whole).subspan(first, size),
                                      run(fast, mlp, std::span(h).subspan(first, size), hidden),
                                      {count, hidden}))
          << count << " tokens";
    }
  }
}

}  // namespace
}  // namespace winnow::ops
