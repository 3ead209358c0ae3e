#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace winnow {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw Error(ErrorCode::kIo,
              fmt::format("{}: cannot {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path, "open");
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    const int saved = errno;
    ::close(fd);
    errno = S_ISREG(info.st_mode) ? saved : EINVAL;
    fail(path, "read as a regular file");
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int saved = errno;
    ::close(fd);
    if (mapped == MAP_FAILED) {
      errno = saved;
      fail(path, "map");
    }
    data_ = static_cast<std::byte*>(mapped);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

void MappedFile::will_need(std::int64_t offset, std::int64_t size) const {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = offset / page * page;
  if (data_ != nullptr && size > 0) {
    ::madvise(data_ + begin, static_cast<std::size_t>(offset + size - begin), MADV_WILLNEED);
  }
}

void MappedFile::drop(std::int64_t offset, std::int64_t size) const {
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = (offset + page - 1) / page * page;
  const std::int64_t end = (offset + size) / page * page;
  if (data_ != nullptr && end > begin) {
    ::madvise(data_ + begin, static_cast<std::size_t>(end - begin), MADV_DONTNEED);
  }
}

}  // namespace winnow
