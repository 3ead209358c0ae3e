// A read-only memory-mapped file; the only user of mmap for files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace winnow {

class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error{kIo} that names the path and the system's reason. An empty file maps to no bytes.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  /// Tells the kernel that [offset, offset + size) is read soon / no longer, so that resident
  /// memory stays near the size of what is in use. Rounded inward to pages for `drop`.
  void will_need(std::int64_t offset, std::int64_t size) const;
  void drop(std::int64_t offset, std::int64_t size) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace winnow
