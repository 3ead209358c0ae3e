#include "ops/cuda/context.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/cuda/check.h"
#include "ops/cuda/device.h"
#include "ops/cuda/memory.h"

namespace winnow::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a sticky error stays, any other is now reported and gone
  throw Error(
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
      fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

DeviceScratch::DeviceScratch(std::shared_ptr<ops::Memory> memory, std::int64_t num_bytes)
    : block_(std::move(memory), num_bytes, "scratch of operations") {}

std::byte* DeviceScratch::take(std::int64_t num_bytes) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_ + rounded > block_.size()) {
    throw Error(ErrorCode::kInternal, fmt::format("an operation wants {} bytes of device scratch, "
                                                  "{} of {} are left",
                                                  rounded, block_.size() - used_, block_.size()));
  }
  std::byte* const taken = block_.data() + used_;
  used_ += rounded;
  return taken;
}

Context::Context(int device) : device_(device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || device < 0 || device >= count) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("no CUDA device {}: {}", device,
                            status != cudaSuccess ? cudaGetErrorString(status)
                                                  : fmt::format("{} found", count).c_str()),
                "use --device cpu");
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  if (properties.major * 10 + properties.minor != kComputeCapability) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{} has compute capability {}.{}; this build has kernels for 9.0 (Hopper)",
                    properties.name, properties.major, properties.minor),
        "use --device cpu");
  }
  name_ = properties.name;
  num_multiprocessors_ = properties.multiProcessorCount;
  stream_ = make_stream(device);
  recording_ = std::make_shared<std::recursive_mutex>();
  memory_ = make_device_memory(device, stream_, recording_);
  counters_ = ops::Array<std::uint32_t>(memory_, kNumCounters, "counters of operations");
  reserve_scratch(std::int64_t{64} << 20);
}

Context::~Context() = default;

void Context::reserve_scratch(std::int64_t num_bytes) {
  if (scratch_ != nullptr && scratch_->num_bytes() >= num_bytes) return;
  scratch_.reset();
  scratch_ = std::make_unique<DeviceScratch>(memory_, num_bytes);
}

}  // namespace winnow::cuda
