// One *.safetensors file: 8 bytes of header length, a JSON header, then tensor bytes.
// Source: github.com/huggingface/safetensors, format section of its README. The file is hostile
// until checked; a view handed out here lies inside the mapping.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor_view.h"
#include "checkpoint/problem_list.h"

namespace winnow {

inline constexpr std::int64_t kMaxSafetensorsHeader = std::int64_t{100} << 20;  // the format's own
inline constexpr std::size_t kMaxTensorRank = 8;

struct StoredTensor {
  std::string name;
  DType dtype = DType::kU8;  // F8_E8M0, which some writers use for scales, reads as U8
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  // of its first byte in the file
  std::int64_t num_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by name
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of `file`; `name` is for messages. Adds to `problems` (and leaves
/// the tensor out): a header that is truncated, too long, or not JSON of the format; a name given
/// twice; an unknown dtype; a shape that is no shape or overflows; a size that is not
/// shape × dtype; data outside the file, overlapping, or with unused bytes between or behind.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name,
                                    ProblemList& problems);

/// Immutable; any thread.
class SafetensorsFile {
 public:
  /// Throws Error{kIo}, or Error{kInvalidCheckpoint} listing the problems.
  explicit SafetensorsFile(const std::filesystem::path& path);
  /// Adds problems instead of throwing for them.
  SafetensorsFile(const std::filesystem::path& path, ProblemList& problems);

  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const StoredTensor> tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  /// Null when there is none.
  const StoredTensor* find(std::string_view name) const;
  /// Throws Error{kInvalidCheckpoint} when there is none.
  TensorView view(std::string_view name) const;
  /// Valid while this object lives. Data may be misaligned for its dtype in a file from an unusual
  /// writer; Checkpoint hands out aligned views.
  TensorView view(const StoredTensor& tensor) const;
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

/// "[2, 3]".
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace winnow
