// Makes an output folder appear all at once: it is written under a temporary name beside its place
// and renamed when complete; when this object dies before that, it is removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace winnow {

class FolderSwap {
 public:
  /// Creates the temporary folder. Throws Error{kInvalidArgument} when `output` is `input`, is not
  /// a folder, or is not empty: with `force` it may hold a checkpoint (a config.json), which
  /// commit() then replaces, but nothing else is ever deleted.
  FolderSwap(std::filesystem::path input, const std::filesystem::path& output, bool force);
  ~FolderSwap();
  FolderSwap(const FolderSwap&) = delete;
  FolderSwap& operator=(const FolderSwap&) = delete;

  const std::filesystem::path& folder() const { return temporary_; }

  /// Throws Error{kIo} when the disk has less room.
  void require_space(std::int64_t num_bytes) const;

  /// Copies the input's tokenizer, template, licence and settings files, but no weights, no index
  /// and no config.json.
  void copy_small_files() const;

  void commit();

 private:
  std::filesystem::path input_;
  std::filesystem::path output_;
  std::filesystem::path temporary_;
};

/// Throws Error{kIo}.
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace winnow
