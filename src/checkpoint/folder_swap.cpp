#include "checkpoint/folder_swap.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace winnow {

namespace {

namespace fs = std::filesystem;

fs::path temporary_beside(const fs::path& output, const char* purpose) {
  std::string name = fmt::format("{}.{}-XXXXXX", output.string(), purpose);
  if (::mkdtemp(name.data()) == nullptr) {
    throw Error(ErrorCode::kIo, fmt::format("{}: cannot create a folder beside it: {}",
                                            output.string(), std::strerror(errno)));
  }
  return name;
}

bool is_small_file(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name == "config.json" || name.ends_with(".safetensors.index.json")) return false;
  if (name.starts_with("LICENSE") || name.starts_with("NOTICE")) return true;
  constexpr std::array kExtensions = {".json", ".jinja", ".txt", ".md", ".model", ".tiktoken"};
  for (const char* extension : kExtensions) {
    if (path.extension() == extension) return true;
  }
  return false;
}

// Runs a filesystem operation; its failure becomes an Error.
template <typename Step>
void checked(Step step) {
  try {
    step();
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::kIo, error.what());
  }
}

}  // namespace

FolderSwap::FolderSwap(fs::path input, const fs::path& output, bool force)
    : input_(std::move(input)), output_(fs::weakly_canonical(output)) {
  if (fs::exists(output_)) {
    if (!fs::is_directory(output_)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: is not a folder", output_.string()));
    }
    if (fs::exists(input_) && fs::equivalent(input_, output_)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: input and output are the same folder", output_.string()));
    }
    const bool is_empty = fs::is_empty(output_);
    if (!is_empty && !force) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: is not empty", output_.string()),
                  "choose another folder, or replace it with --force");
    }
    if (!is_empty && !fs::exists(output_ / "config.json")) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: holds files but no config.json, so it is no checkpoint and is "
                              "not replaced",
                              output_.string()));
    }
  } else {
    checked([&] { fs::create_directories(output_.parent_path()); });
  }
  temporary_ = temporary_beside(output_, "partial");
}

FolderSwap::~FolderSwap() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void FolderSwap::require_space(std::int64_t num_bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(temporary_, error);
  if (error || space.available >= static_cast<std::uintmax_t>(num_bytes)) return;
  throw Error(ErrorCode::kIo, fmt::format("{}: {} bytes free on its disk, {} needed",
                                          output_.string(), space.available, num_bytes));
}

void FolderSwap::copy_small_files() const {
  checked([&] {
    for (const fs::directory_entry& entry : fs::directory_iterator(input_)) {
      if (!entry.is_regular_file() || !is_small_file(entry.path())) continue;
      fs::copy_file(entry.path(), temporary_ / entry.path().filename());
    }
  });
}

void FolderSwap::commit() {
  checked([&] {
    fs::permissions(temporary_, fs::perms(0755));
    if (!fs::exists(output_) || fs::is_empty(output_)) {
      fs::rename(temporary_, output_);  // replaces an empty folder
    } else {
      const fs::path old = temporary_beside(output_, "replaced");
      fs::rename(output_, old);
      fs::rename(temporary_, output_);
      fs::remove_all(old);
    }
  });
  temporary_.clear();
}

void write_text_file(const fs::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  if (!file) throw Error(ErrorCode::kIo, fmt::format("{}: cannot write", path.string()));
}

}  // namespace winnow
