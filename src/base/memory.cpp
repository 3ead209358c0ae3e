#include "base/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace winnow {
namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

/// First number in `path`, or the largest int64 when there is none ("max", no such file).
std::int64_t read_limit(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Buffer::Buffer(std::int64_t num_bytes, const char* what) : size_(num_bytes) {
  if (num_bytes == 0) return;
  void* mapped = num_bytes < 0 ? MAP_FAILED
                               : ::mmap(nullptr, static_cast<std::size_t>(num_bytes),
                                        PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory,
                fmt::format("cannot reserve {} bytes for {}", num_bytes, what));
  }
  data_ = static_cast<std::byte*>(mapped);
  if (num_bytes >= kHugePage) ::madvise(mapped, static_cast<std::size_t>(num_bytes), MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::int64_t available_memory_bytes() {
  std::int64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  while (meminfo >> key) {
    std::int64_t kib = 0;
    if (key == "MemAvailable:" && meminfo >> kib) available = kib * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const std::int64_t limit = read_limit("/sys/fs/cgroup/memory.max");
  if (limit != std::numeric_limits<std::int64_t>::max()) {
    available =
        std::min(available, limit - std::min(limit, read_limit("/sys/fs/cgroup/memory.current")));
  }
  return available;
}

std::int64_t peak_resident_bytes() {
  struct rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace winnow
