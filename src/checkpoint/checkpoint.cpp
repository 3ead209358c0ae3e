#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/json_file.h"

namespace winnow {

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder) : folder_(folder) {
  ProblemList problems;
  open(problems);
  problems.throw_if_any(folder_.string());
}

Checkpoint::Checkpoint(const std::filesystem::path& folder, ProblemList& problems)
    : folder_(folder) {
  open(problems);
}

void Checkpoint::open(ProblemList& problems) {
  if (!std::filesystem::is_directory(folder_)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{}: not a folder", folder_.string()),
                "give the folder that holds config.json and *.safetensors");
  }
  const std::filesystem::path index = folder_ / kIndexFile;
  is_indexed_ = std::filesystem::exists(index);
  if (is_indexed_) {
    open_indexed(index, problems);
  } else if (std::filesystem::exists(folder_ / kSingleFile)) {
    files_.reserve(1);
    add_file(folder_ / kSingleFile, problems);
  } else {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{}: neither {} nor {}", folder_.string(), kSingleFile, kIndexFile),
                "is the download complete?");
  }
  copy_misaligned();
}

void Checkpoint::open_indexed(const std::filesystem::path& index, ProblemList& problems) {
  const nlohmann::json json = read_json_object(index);
  const auto weight_map = json.find("weight_map");
  if (weight_map == json.end() || !weight_map->is_object()) {
    problems.add(fmt::format("{}: no object weight_map", kIndexFile));
    return;
  }
  std::map<std::string, std::vector<std::string>> names_of_shard;
  for (const auto& [name, shard] : weight_map->items()) {
    const auto* file = shard.get_ptr<const std::string*>();
    // A shard is a file of this folder: never a path that leads out of it.
    if (file == nullptr || file->empty() || file->find('/') != std::string::npos ||
        file->find('\0') != std::string::npos || *file == "." || *file == "..") {
      problems.add(fmt::format("{}: {}: shard {}, expected the name of a file in the folder",
                               kIndexFile, printable(name), printable(shard.dump())));
      continue;
    }
    names_of_shard[*file].push_back(name);
  }
  files_.reserve(names_of_shard.size());  // views into the headers stay valid
  for (const auto& [shard, names] : names_of_shard) {
    const std::filesystem::path path = folder_ / shard;
    if (!std::filesystem::exists(path)) {
      problems.add(fmt::format("{}: missing; {} expects {} tensors in it, such as {}",
                               printable(shard), kIndexFile, names.size(),
                               printable(names.front())));
      continue;
    }
    add_file(path, problems);
    const SafetensorsFile& file = files_.back();
    if (file.tensors().empty()) continue;  // a broken header has been reported
    const std::set<std::string_view> listed(names.begin(), names.end());
    for (const std::string& name : names) {
      if (file.find(name) == nullptr) {
        problems.add(fmt::format("{}: no tensor {}, which {} expects in it", printable(shard),
                                 printable(name), kIndexFile));
      }
    }
    for (const StoredTensor& tensor : file.tensors()) {
      if (!listed.contains(tensor.name)) {
        problems.add(fmt::format("{}: {} is not listed for this file in {}", printable(shard),
                                 printable(tensor.name), kIndexFile));
      }
    }
  }
}

void Checkpoint::add_file(const std::filesystem::path& path, ProblemList& problems) {
  const std::size_t index = files_.size();
  files_.emplace_back(path, problems);
  const auto tensors = files_.back().tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [at, is_new] = tensors_.emplace(tensors[i].name, Place{index, i});
    if (!is_new) {
      problems.add(fmt::format("{}: {} is also in {}", path.filename().string(),
                               printable(tensors[i].name),
                               files_[at->second.file].path().filename().string()));
    }
  }
}

void Checkpoint::copy_misaligned() {
  for (const auto& [name, place] : tensors_) {
    const StoredTensor& tensor = files_[place.file].tensors()[place.tensor];
    if (tensor.offset % dtype_bytes(tensor.dtype) == 0 || tensor.num_bytes == 0) continue;
    Buffer copy(tensor.num_bytes, "a tensor whose data is misaligned in its file");
    std::memcpy(copy.data(), files_[place.file].view(tensor).data,
                static_cast<std::size_t>(tensor.num_bytes));
    copies_.emplace(name, std::move(copy));
  }
}

std::string Checkpoint::listing_file() const { return is_indexed_ ? kIndexFile : kSingleFile; }

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names;
  names.reserve(tensors_.size());
  for (const auto& [name, place] : tensors_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Checkpoint::Location Checkpoint::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) return {};
  const SafetensorsFile& file = files_[at->second.file];
  return {.file = &file, .tensor = &file.tensors()[at->second.tensor]};
}

TensorView Checkpoint::view(std::string_view name) const {
  const Location location = find(name);
  WINNOW_ASSERT(location.tensor != nullptr, "tensor is in the checkpoint", name);
  TensorView view = location.file->view(*location.tensor);
  if (const auto copy = copies_.find(name); copy != copies_.end()) view.data = copy->second.data();
  return view;
}

namespace {

/// Calls use(file, offset) for the mapped file that holds `data`, if any does.
template <typename Use>
void with_file_of(const std::byte* data, const std::vector<SafetensorsFile>& files, Use use) {
  const std::less<> before;  // a total order also between different mappings
  for (const SafetensorsFile& file : files) {
    const auto bytes = file.file().bytes();
    if (before(data, bytes.data()) || !before(data, bytes.data() + bytes.size())) continue;
    use(file.file(), data - bytes.data());
    return;
  }
}

}  // namespace

void Checkpoint::will_need(const TensorView& view) const {
  with_file_of(view.data, files_, [&](const MappedFile& file, std::int64_t offset) {
    file.will_need(offset, view.num_bytes());
  });
}

void Checkpoint::drop(const TensorView& view) const {
  drop({view.data, static_cast<std::size_t>(view.num_bytes())});
}

void Checkpoint::drop(std::span<const std::byte> part_of_a_view) const {
  with_file_of(part_of_a_view.data(), files_, [&](const MappedFile& file, std::int64_t offset) {
    file.drop(offset, static_cast<std::int64_t>(part_of_a_view.size()));
  });
}

}  // namespace winnow
