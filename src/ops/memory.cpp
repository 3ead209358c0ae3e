#include "ops/memory.h"

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "base/memory.h"
#include "ops/host_memory.h"

namespace winnow::ops {
namespace {

class HostMemory final : public HostMemoryBase {
 public:
  std::byte* allocate(std::int64_t num_bytes, const char* what) override {
    Buffer buffer(num_bytes, what);
    std::byte* const data = buffer.data();
    note(data, buffer.size(), what);
    const std::lock_guard lock(mutex_);
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void release(std::byte* data, std::int64_t /*num_bytes*/) noexcept override {
    forget(data);
    const std::lock_guard lock(mutex_);
    buffers_.erase(data);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::byte*, Buffer> buffers_;
};

}  // namespace

std::int64_t HostMemoryBase::available_bytes() const { return available_memory_bytes(); }

void HostMemoryBase::upload(void* to, const void* from, std::int64_t num_bytes) {
  copy(to, from, num_bytes);
}

void HostMemoryBase::download(void* to, const void* from, std::int64_t num_bytes) {
  copy(to, from, num_bytes);
}

void HostMemoryBase::copy(void* to, const void* from, std::int64_t num_bytes) {
  std::memmove(to, from, static_cast<std::size_t>(num_bytes));
}

std::map<std::string, std::int64_t> HostMemoryBase::uses() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::int64_t> uses;
  for (const auto& [data, piece] : pieces_) uses[piece.what] += piece.num_bytes;
  return uses;
}

void HostMemoryBase::note(std::byte* data, std::int64_t num_bytes, const char* what) {
  const std::lock_guard lock(mutex_);
  pieces_[data] = {.what = what, .num_bytes = num_bytes};
}

void HostMemoryBase::forget(std::byte* data) noexcept {
  const std::lock_guard lock(mutex_);
  pieces_.erase(data);
}

std::shared_ptr<Memory> make_host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace winnow::ops
