#include "model/weight_packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "model/packed_weights.h"
#include "ops/backend.h"
#include "ops/host_memory.h"

namespace winnow {
namespace {

/// Says that it has so much.
class SmallMemory final : public ops::HostMemoryBase {
 public:
  explicit SmallMemory(std::int64_t free_bytes) : free_bytes_(free_bytes) {}
  std::int64_t available_bytes() const override { return free_bytes_; }
  std::byte* allocate(std::int64_t num_bytes, const char* what) override {
    return memory_->allocate(num_bytes, what);
  }
  void release(std::byte* data, std::int64_t num_bytes) noexcept override {
    memory_->release(data, num_bytes);
  }

 private:
  std::int64_t free_bytes_;
  std::shared_ptr<ops::Memory> memory_ = ops::make_host_memory();
};

std::string refusal(MatrixSpelling spelling, std::int64_t free_bytes) {
  const TemporaryFolder folder;
  RandomCheckpoint options;
  options.experts = options.linears = spelling;
  write_random_checkpoint(folder.path(), options);
  const Checkpoint checkpoint(folder.path());
  const ModelWeights weights = load_weights(checkpoint, read_model_config(folder.path()));
  ops::Backend backend = ops::make_scalar_backend();
  backend.memory = std::make_shared<SmallMemory>(free_bytes);
  try {
    (void)pack_weights(checkpoint, weights, backend);
    return {};
  } catch (const Error& error) {
    return error.code() == ErrorCode::kOutOfMemory ? error.text()
                                                   : "another error: " + error.text();
  }
}

TEST(WeightPacker, SaysBeforeReadingHowMuchIsMissing) {
  const std::string text = refusal(MatrixSpelling::kBF16, 1000);
  EXPECT_THAT(text, ::testing::HasSubstr("the weights take 0.00 GB, and this machine has 0.00 GB"));
  EXPECT_THAT(text, ::testing::HasSubstr("more memory would do"));
  EXPECT_THAT(text, ::testing::HasSubstr("`winnow quantize IN OUT` makes at most"));
  EXPECT_THAT(text, ::testing::HasSubstr("still too many"));
}

TEST(WeightPacker, SaysWhetherQuantisingWouldDo) {
  EXPECT_THAT(refusal(MatrixSpelling::kBF16, 250'000), ::testing::HasSubstr("which fits"));
  EXPECT_THAT(refusal(MatrixSpelling::kMxfp8, 1000),
              ::testing::Not(::testing::HasSubstr("quantize IN OUT` makes at most 0.00 GB of these "
                                                  "weights, which fits")));
}

}  // namespace
}  // namespace winnow
