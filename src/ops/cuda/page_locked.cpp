#include <cuda_runtime.h>

#include <cstring>

#include "ops/cuda/check.h"
#include "ops/cuda/memory.h"
#include "ops/host_memory.h"

namespace winnow::cuda {
namespace {

class PageLockedMemory final : public ops::HostMemoryBase {
 public:
  explicit PageLockedMemory(int device) : device_(device) {}

  std::byte* allocate(std::int64_t num_bytes, const char* what) override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    void* data = nullptr;
    check(cudaHostAlloc(&data, static_cast<std::size_t>(num_bytes), cudaHostAllocDefault),
          "cudaHostAlloc");
    std::memset(data, 0, static_cast<std::size_t>(num_bytes));
    note(static_cast<std::byte*>(data), num_bytes, what);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, std::int64_t /*num_bytes*/) noexcept override {
    forget(data);
    cudaFreeHost(data);
  }

 private:
  const int device_;
};

}  // namespace

std::shared_ptr<ops::Memory> make_page_locked_memory(int device) {
  return std::make_shared<PageLockedMemory>(device);
}

}  // namespace winnow::cuda
