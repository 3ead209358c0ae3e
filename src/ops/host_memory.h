// What memories that the host reads and writes itself have in common: plain copies, and the list of
// what was handed out. They differ in where the bytes come from.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>

#include "ops/memory.h"

namespace winnow::ops {

class HostMemoryBase : public Memory {
 public:
  bool is_host() const override { return true; }
  std::int64_t available_bytes() const override;

  void upload(void* to, const void* from, std::int64_t num_bytes) override;
  void download(void* to, const void* from, std::int64_t num_bytes) override;
  void copy(void* to, const void* from, std::int64_t num_bytes) override;
  void finish() override {}

  std::map<std::string, std::int64_t> uses() const override;

 protected:
  void note(std::byte* data, std::int64_t num_bytes, const char* what);
  void forget(std::byte* data) noexcept;

 private:
  struct Piece {
    std::string what;
    std::int64_t num_bytes = 0;
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::byte*, Piece> pieces_;
};

}  // namespace winnow::ops
