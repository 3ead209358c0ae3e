#include "ops/cuda/memory.h"

#include <fmt/format.h>

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/cuda/check.h"

namespace winnow::cuda {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kSlabBytes = std::int64_t{64} << 20;
/// Larger arrays get an allocation of their own: at most an eighth of a slab is lost at its end.
constexpr std::int64_t kLargeBytes = kSlabBytes / 8;

class DeviceMemory final : public ops::Memory {
 public:
  DeviceMemory(int device, SharedStream stream, SharedLock recording)
      : device_(device), stream_(std::move(stream)), recording_(std::move(recording)) {}

  ~DeviceMemory() override {
    for (const Slab& slab : slabs_) cudaFree(slab.data);
  }

  bool is_host() const override { return false; }

  std::int64_t available_bytes() const override {
    use_device();
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return static_cast<std::int64_t>(free_bytes);
  }

  std::byte* allocate(std::int64_t num_bytes, const char* what) override {
    use_device();
    const std::int64_t rounded = round_up(num_bytes);
    std::byte* data = nullptr;
    {
      const std::lock_guard lock(mutex_);
      data = rounded >= kLargeBytes ? raw_allocate(rounded, what) : carve(rounded, what);
      pieces_.emplace(data, Piece{.what = what, .num_bytes = rounded});
    }
    const std::lock_guard recording(*recording_);
    check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(num_bytes), stream_.get()),
          "cudaMemset");
    return data;
  }

  void release(std::byte* data, std::int64_t num_bytes) noexcept override {
    const std::lock_guard recording(*recording_);  // before mutex_
    const std::lock_guard lock(mutex_);
    pieces_.erase(data);
    if (round_up(num_bytes) >= kLargeBytes) {
      cudaSetDevice(device_);
      cudaStreamSynchronize(stream_.get());
      cudaFree(data);
      return;
    }
    for (Slab& slab : slabs_) {
      if (data < slab.data || data >= slab.data + kSlabBytes) continue;
      if (--slab.num_arrays == 0) slab.used = 0;
      return;
    }
  }

  void upload(void* to, const void* from, std::int64_t num_bytes) override {
    const std::lock_guard recording(*recording_);
    use_device();
    // From pageable memory the call returns once `from` has been staged.
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(num_bytes), cudaMemcpyHostToDevice,
                          stream_.get()),
          "copying to the device");
  }
  void download(void* to, const void* from, std::int64_t num_bytes) override {
    const std::lock_guard recording(*recording_);
    use_device();
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(num_bytes), cudaMemcpyDeviceToHost,
                          stream_.get()),
          "copying from the device");
    check(cudaStreamSynchronize(stream_.get()), "waiting for the device");
  }
  void finish() override {
    const std::lock_guard recording(*recording_);
    use_device();
    check(cudaStreamSynchronize(stream_.get()), "waiting for the device");
  }
  void copy(void* to, const void* from, std::int64_t num_bytes) override {
    const std::lock_guard recording(*recording_);
    use_device();
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(num_bytes), cudaMemcpyDeviceToDevice,
                          stream_.get()),
          "copying on the device");
  }

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
  struct Slab {
    std::byte* data = nullptr;
    std::int64_t used = 0;
    std::int64_t num_arrays = 0;
  };

  static std::int64_t round_up(std::int64_t num_bytes) {
    return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  void use_device() const { check(cudaSetDevice(device_), "cudaSetDevice"); }

  std::byte* raw_allocate(std::int64_t num_bytes, const char* what) {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(num_bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("{}: {} bytes do not fit device {}, {} are free", what, num_bytes,
                              device_, available_bytes()));
    }
    check(status, "cudaMalloc");
    return static_cast<std::byte*>(data);
  }

  std::byte* carve(std::int64_t rounded, const char* what) {
    for (Slab& slab : slabs_) {
      if (slab.used + rounded > kSlabBytes) continue;
      std::byte* const data = slab.data + slab.used;
      slab.used += rounded;
      ++slab.num_arrays;
      return data;
    }
    slabs_.push_back({.data = raw_allocate(kSlabBytes, what), .used = rounded, .num_arrays = 1});
    return slabs_.back().data;
  }

  const int device_;
  const SharedStream stream_;
  const SharedLock recording_;
  mutable std::mutex mutex_;
  std::vector<Slab> slabs_;
  std::unordered_map<std::byte*, Piece> pieces_;
};

}  // namespace

SharedStream make_stream(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return {stream, [](cudaStream_t owned) { cudaStreamDestroy(owned); }};
}

std::shared_ptr<ops::Memory> make_device_memory(int device, SharedStream stream,
                                                SharedLock recording) {
  return std::make_shared<DeviceMemory>(device, std::move(stream), std::move(recording));
}

}  // namespace winnow::cuda
