// Writes a *.safetensors file whose tensors are known beforehand, in pieces and in any order, so
// that no more than a piece is ever in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace winnow {

class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    DType dtype = DType::kU8;
    std::vector<std::int64_t> shape;
  };

  /// Creates (or truncates) the file and writes its header; data follows in the order that the
  /// public library uses (widest dtype first, then by name), so every tensor is aligned for its
  /// dtype. Throws Error{kIo}, or kInvalidArgument on a repeated name.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<Tensor> tensors,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends to the tensor's data. Throws Error{kIo} (disk full, …). Writing to a name that was
  /// not announced or past its end is the caller's bug (asserted).
  void append(std::string_view name, std::span<const std::byte> bytes);

  /// Flushes to the disk and closes; every tensor must be complete (asserted). Without finish()
  /// the file is left incomplete.
  void finish();

  std::int64_t file_bytes() const { return file_bytes_; }

 private:
  struct Slot {
    std::int64_t offset = 0;
    std::int64_t num_bytes = 0;
    std::int64_t written = 0;
  };
  void write_at(std::int64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  std::map<std::string, Slot, std::less<>> slots_;
  std::int64_t file_bytes_ = 0;
  int descriptor_ = -1;
};

}  // namespace winnow
