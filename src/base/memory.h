// Aligned, page-backed memory for weights, the KV pool and scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace winnow {

/// Zero-filled anonymous memory, aligned to a page; asks for huge pages when it is large.
/// Move-only. Throws Error{kOutOfMemory} that names `what` and the size.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::int64_t num_bytes, const char* what);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Bytes this process may still use: the smaller of free physical memory and its cgroup's limit.
std::int64_t available_memory_bytes();

/// Peak resident set of this process so far.
std::int64_t peak_resident_bytes();

}  // namespace winnow
