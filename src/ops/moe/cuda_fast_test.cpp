#include <gtest/gtest.h>

#include <algorithm>

#include "ops/moe/moe.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/random_mlp.h"

namespace winnow::ops {
namespace {

struct Shape {
  std::int64_t hidden;
  std::int64_t width;
  std::int32_t num_experts;
  std::int32_t top_k = 4;
  bool has_shared = true;
};

class FastMoeCase {
 public:
  FastMoeCase(const Shape& s, std::uint64_t stream)
      : shape(s),
        random_(stream),
        router_(QuantScheme::kF32, s.num_experts, s.hidden, random_),
        shared_(QuantScheme::kMxfp8, s.hidden, s.width, random_) {
    for (std::int32_t e = 0; e < s.num_experts; ++e) {
      experts_.emplace_back(QuantScheme::kNvfp4, s.hidden, s.width, random_);
    }
    bias_ = random_.normals(s.num_experts, 0.1F);
    h_ = random_.normals(kMostTokens * s.hidden, 2.0F);
  }

  std::string describe() const { return random_.describe(); }

  /// Weights packed for one backend.
  struct Packed {
    Packed(const Backend& backend, const FastMoeCase& c)
        : router(backend.pack(std::vector{c.router_.source()})), shared(backend, c.shared_) {
      for (const testing::RandomMlp& expert : c.experts_) mlps.emplace_back(backend, expert);
      for (const testing::PackedMlp& expert : mlps) experts.push_back(expert.weights());
    }
    std::unique_ptr<PackedMatrix> router;
    testing::PackedMlp shared;
    std::vector<testing::PackedMlp> mlps;
    std::vector<MlpWeights> experts;
  };

  /// y of tokens [first, first + count), from zeros.
  std::vector<float> run(const Backend& backend, const Packed& packed, std::int64_t first,
                         std::int64_t count) const {
    testing::TestContext context;
    std::vector<float> y(static_cast<std::size_t>(count * shape.hidden));
    backend.moe(context.get(), {.h = h_.data() + first * shape.hidden,
                                .num_tokens = count,
                                .router = packed.router.get(),
                                .router_bias = bias_.data(),
                                .experts = packed.experts,
                                .shared = shape.has_shared ? packed.shared.weights() : MlpWeights{},
                                .top_k = shape.top_k,
                                .routed_scale = 2.0F,
                                .constants = {.alpha = 1.702F, .limit = 7.0F},
                                .y = y.data()});
    return y;
  }

  static constexpr std::int64_t kMostTokens = 300;
  Shape shape;

 private:
  testing::RandomInputs random_;
  testing::RandomMatrix router_;
  testing::RandomMlp shared_;
  std::vector<testing::RandomMlp> experts_;
  std::vector<float> bias_;
  std::vector<float> h_;
};

TEST(CudaFastMoe, IsNearTheReferenceAndATokenDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  std::uint64_t stream = 1200;
  for (const Shape& shape : {Shape{512, 256, 128}, Shape{1024, 512, 16}, Shape{256, 128, 8, 2},
                             Shape{512, 256, 16, 4, false}}) {
    const FastMoeCase c(shape, ++stream);
    SCOPED_TRACE(c.describe());
    // Both kinds read one layout; uploads are ordered with the stream of `fast`, so it runs first.
    const FastMoeCase::Packed packed(fast, c);
    const std::vector<float> whole = c.run(fast, packed, 0, FastMoeCase::kMostTokens);
    const std::vector<float> reference = c.run(exact, packed, 0, FastMoeCase::kMostTokens);
    EXPECT_LT(testing::relative_error(reference, whole), testing::kBf16Error);
    for (const std::int64_t count : testing::kTokenCounts) {
      const std::int64_t first = std::min<std::int64_t>(11, FastMoeCase::kMostTokens - count);
      const std::vector<float> some = c.run(fast, packed, first, count);
      ASSERT_TRUE(testing::bits_equal(
          std::span(whole).subspan(static_cast<std::size_t>(first * shape.hidden), some.size()),
          some, {count, shape.hidden}))
          << count << " tokens";
    }
  }
}

}  // namespace
}  // namespace winnow::ops
