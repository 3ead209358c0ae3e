// Where a backend keeps tensors. The decoder places weights, activations, the KV pool and each
// step's batch through this, so that it is one list of operations for CPUs and for devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace winnow::ops {

class Memory {
 public:
  virtual ~Memory() = default;

  /// True when pointers from allocate() are ordinary host pointers.
  virtual bool is_host() const = 0;
  /// Bytes that allocate() can still give; a bound, others may take them first.
  virtual std::int64_t available_bytes() const = 0;

  /// Zero-filled, aligned to 256 bytes. Throws Error{kOutOfMemory} that names `what` and the size.
  virtual std::byte* allocate(std::int64_t num_bytes, const char* what) = 0;
  virtual void release(std::byte* data, std::int64_t num_bytes) noexcept = 0;

  // Copies run in order with the operations of the backend that owns this memory. `from` of
  // upload() may be reused when it returns; `to` of download() is complete when it returns.
  virtual void upload(void* to, const void* from, std::int64_t num_bytes) = 0;
  virtual void download(void* to, const void* from, std::int64_t num_bytes) = 0;
  virtual void copy(void* to, const void* from, std::int64_t num_bytes) = 0;

  /// Waits until the operations submitted so far are done: what they wrote to staging memory
  /// (Backend::staging) can then be read.
  virtual void finish() = 0;

  /// Bytes handed out under each `what`, in alphabetical order: the start-up table's memory lines.
  virtual std::map<std::string, std::int64_t> uses() const = 0;
};

std::shared_ptr<Memory> make_host_memory();

/// `count` elements of a backend's memory; move-only.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(std::shared_ptr<Memory> memory, std::int64_t count, const char* what)
      : memory_(std::move(memory)), count_(count) {
    if (count_ > 0) data_ = reinterpret_cast<T*>(memory_->allocate(num_bytes(), what));
  }
  /// A copy of `values`.
  Array(std::shared_ptr<Memory> memory, std::span<const T> values, const char* what)
      : Array(std::move(memory), std::ssize(values), what) {
    if (count_ > 0) memory_->upload(data_, values.data(), num_bytes());
  }
  ~Array() {
    if (data_ != nullptr) memory_->release(reinterpret_cast<std::byte*>(data_), num_bytes());
  }
  Array(Array&& other) noexcept { swap(other); }
  Array& operator=(Array&& other) noexcept {
    Array taken(std::move(other));
    swap(taken);
    return *this;
  }

  T* data() const { return data_; }
  std::int64_t size() const { return count_; }
  std::int64_t num_bytes() const { return count_ * static_cast<std::int64_t>(sizeof(T)); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  void swap(Array& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  std::shared_ptr<Memory> memory_;
  T* data_ = nullptr;
  std::int64_t count_ = 0;
};

}  // namespace winnow::ops
