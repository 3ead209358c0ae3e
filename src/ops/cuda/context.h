// What the operations of the CUDA backend share: one device, one stream, scratch on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/cuda/memory.h"
#include "ops/memory.h"

struct CUstream_st;  // cudaStream_t is a pointer to it; keeps CUDA's headers out of C++ files

namespace winnow::cuda {

/// Scratch of one operation, carved from one block that is allocated at start: an operation never
/// allocates, so a step can be captured in a graph and cannot run out of memory. Operations take in
/// stream order, so the next one may reuse the same bytes.
class DeviceScratch {
 public:
  DeviceScratch(std::shared_ptr<ops::Memory> memory, std::int64_t num_bytes);

  /// Aligned to 256 bytes, contents undefined. Throws Error{kInternal} when the block is too small:
  /// the bound of the operation was wrong.
  std::byte* take(std::int64_t num_bytes);
  template <typename T>
  T* take_array(std::int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<std::int64_t>(sizeof(T))));
  }
  void reset() { used_ = 0; }

  /// What can still be taken, before rounding.
  std::int64_t available_bytes() const { return block_.num_bytes() - used_; }
  /// A place to go back to; what was taken since is no longer valid.
  std::int64_t mark() const { return used_; }
  void rewind(std::int64_t mark) { used_ = mark; }

  std::int64_t num_bytes() const { return block_.num_bytes(); }

 private:
  ops::Array<std::byte> block_;
  std::int64_t used_ = 0;
};

/// Used by the thread that owns the decoder.
class Context {
 public:
  /// Throws Error{kUnsupported} when `device` does not exist or is older than Hopper, or when the
  /// driver is missing.
  explicit Context(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  CUstream_st* stream() const { return stream_.get(); }
  int num_multiprocessors() const { return num_multiprocessors_; }
  int device() const { return device_; }
  const std::string& name() const { return name_; }
  const std::shared_ptr<ops::Memory>& memory() const { return memory_; }
  /// Locked while the stream records, and by whoever submits to it from another thread.
  const SharedLock& recording() const { return recording_; }

  /// Grows the scratch block; between steps only.
  void reserve_scratch(std::int64_t num_bytes);
  DeviceScratch& scratch() { return *scratch_; }

  /// A counter per operation that needs one, zero between operations (each use leaves it zero).
  std::uint32_t* counters() const { return counters_.data(); }
  static constexpr std::int64_t kNumCounters = 65536;

 private:
  int device_ = 0;
  std::string name_;
  int num_multiprocessors_ = 0;
  std::shared_ptr<CUstream_st> stream_;
  SharedLock recording_;
  std::shared_ptr<ops::Memory> memory_;
  std::unique_ptr<DeviceScratch> scratch_;
  ops::Array<std::uint32_t> counters_;
};

}  // namespace winnow::cuda
