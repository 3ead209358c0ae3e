#include <gtest/gtest.h>

#include <algorithm>

#include "ops/linear/linear.h"
#include "ops/testing/compare_bits.h"
#include "ops/testing/fast_check.h"
#include "ops/testing/random_matrix.h"

namespace winnow::ops {
namespace {

struct Shape {
  std::vector<QuantScheme> parts;
  std::int64_t part_rows;
  std::int64_t cols;
};

std::vector<Shape> shapes() {
  using enum QuantScheme;
  return {{{kMxfp8}, 640, 6144}, {{kNvfp4}, 384, 3072},        {{kBF16}, 192, 6144},
          {{kF32}, 128, 1024},   {{kMxfp8, kMxfp8}, 128, 512}, {{kMxfp8}, 64, 8192},
          {{kMxfp8}, 96, 64},    {{kBF16}, 1000, 256},         {{kNvfp4, kBF16, kMxfp8}, 64, 1024},
          {{kMxfp8}, 6144, 128}};
}

class FastLinearCase {
 public:
  FastLinearCase(const Shape& shape, std::uint64_t stream) : cols(shape.cols), random_(stream) {
    for (const QuantScheme scheme : shape.parts) {
      matrices_.emplace_back(scheme, shape.part_rows, cols, random_);
      rows += shape.part_rows;
    }
    x_ = random_.normals(kMostTokens * cols);
  }

  std::string describe() const { return random_.describe(); }

  /// Tokens [first, first + count).
  std::vector<float> run(const Backend& backend, std::int64_t first, std::int64_t count) {
    testing::TestContext context;
    std::vector<MatrixSource> sources;
    for (const testing::RandomMatrix& matrix : matrices_) sources.push_back(matrix.source());
    if (packed_by_ != backend.name) {
      packed_ = backend.pack(sources);
      packed_by_ = backend.name;
    }
    std::vector<float> y = testing::poisoned(count * rows);
    backend.linear(context.get(), {.x = x_.data() + first * cols,
                                   .x_stride = cols,
                                   .w = packed_.get(),
                                   .y = y.data(),
                                   .y_stride = rows,
                                   .num_rows = count});
    return y;
  }

  static constexpr std::int64_t kMostTokens = 300;
  std::int64_t rows = 0;
  std::int64_t cols;

 private:
  testing::RandomInputs random_;
  std::vector<testing::RandomMatrix> matrices_;
  std::vector<float> x_;
  std::unique_ptr<PackedMatrix> packed_;
  std::string packed_by_;
};

TEST(CudaFastLinear, IsNearTheReferenceAndARowDoesNotDependOnItsBatch) {
  WINNOW_SKIP_WITHOUT_CUDA();
  const Backend fast = testing::make_hosted_cuda_backend(CudaKernels::kFast);
  const Backend exact = testing::make_hosted_cuda_backend(CudaKernels::kExact);
  std::uint64_t stream = 1000;
  for (const Shape& shape : shapes()) {
    FastLinearCase c(shape, ++stream);
    SCOPED_TRACE(c.describe() + " cols " + std::to_string(c.cols));
    const std::vector<float> reference = c.run(exact, 0, FastLinearCase::kMostTokens);
    const std::vector<float> whole = c.run(fast, 0, FastLinearCase::kMostTokens);
    EXPECT_LT(testing::relative_error(reference, whole), testing::kBf16Error);
    for (const std::int64_t count : testing::kTokenCounts) {
      const std::int64_t first = std::min<std::int64_t>(3, FastLinearCase::kMostTokens - count);
      const std::vector<float> some = c.run(fast, first, count);
      ASSERT_TRUE(testing::bits_equal(
          std::span(whole).subspan(static_cast<std::size_t>(first * c.rows), some.size()), some,
          {count, c.rows}))
          << count << " of " << FastLinearCase::kMostTokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace winnow::ops
