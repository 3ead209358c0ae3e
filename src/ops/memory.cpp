#include "ops/memory.h"

#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "base/memory.h"

namespace winnow::ops {
namespace {

class HostMemory final : public Memory {
 public:
  bool is_host() const override { return true; }
  std::int64_t available_bytes() const override { return available_memory_bytes(); }

  std::byte* allocate(std::int64_t num_bytes, const char* what) override {
    Buffer buffer(num_bytes, what);
    std::byte* const data = buffer.data();
    const std::lock_guard lock(mutex_);
    buffers_.emplace(data, Piece{.what = what, .buffer = std::move(buffer)});
    return data;
  }
  void release(std::byte* data, std::int64_t /*num_bytes*/) noexcept override {
    const std::lock_guard lock(mutex_);
    buffers_.erase(data);
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
    for (const auto& [data, piece] : buffers_) uses[piece.what] += piece.buffer.size();
    return uses;
  }

 private:
  struct Piece {
    std::string what;
    Buffer buffer;
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::byte*, Piece> buffers_;
};

}  // namespace

std::shared_ptr<Memory> make_host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace winnow::ops
