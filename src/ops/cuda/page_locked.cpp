#include <cuda_runtime.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "base/memory.h"
#include "ops/cuda/check.h"
#include "ops/cuda/memory.h"

namespace winnow::cuda {
namespace {

class PageLockedMemory final : public ops::Memory {
 public:
  explicit PageLockedMemory(int device) : device_(device) {}

  bool is_host() const override { return true; }
  std::int64_t available_bytes() const override { return available_memory_bytes(); }

  std::byte* allocate(std::int64_t num_bytes, const char* what) override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    void* data = nullptr;
    check(cudaHostAlloc(&data, static_cast<std::size_t>(num_bytes), cudaHostAllocDefault),
          "cudaHostAlloc");
    std::memset(data, 0, static_cast<std::size_t>(num_bytes));
    const std::lock_guard lock(mutex_);
    pieces_[static_cast<std::byte*>(data)] = {.what = what, .num_bytes = num_bytes};
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, std::int64_t /*num_bytes*/) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      pieces_.erase(data);
    }
    cudaFreeHost(data);
  }

  void upload(void* to, const void* from, std::int64_t num_bytes) override {
    copy(to, from, num_bytes);
  }
  void download(void* to, const void* from, std::int64_t num_bytes) override {
    copy(to, from, num_bytes);
  }
  void copy(void* to, const void* from, std::int64_t num_bytes) override {
    std::memmove(to, from, static_cast<std::size_t>(num_bytes));
  }
  void finish() override {}

  std::map<std::string, std::int64_t> uses() const override {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::int64_t> uses;
    for (const auto& [data, piece] : pieces_) uses[piece.what] += piece.num_bytes;
    return uses;
  }

 private:
  struct Piece {
    std::string what;
    std::int64_t num_bytes = 0;
  };

  const int device_;
  mutable std::mutex mutex_;
  std::unordered_map<std::byte*, Piece> pieces_;
};

}  // namespace

std::shared_ptr<ops::Memory> make_page_locked_memory(int device) {
  return std::make_shared<PageLockedMemory>(device);
}

}  // namespace winnow::cuda
