// A model folder: which safetensors files it has and which tensor is in which.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/memory.h"
#include "base/tensor_view.h"
#include "checkpoint/problem_list.h"
#include "checkpoint/safetensors.h"

namespace winnow {

/// Opens model.safetensors, or the shards that model.safetensors.index.json names. Nothing is read
/// but the headers; tensor data is paged in when it is touched. Immutable; any thread.
class Checkpoint {
 public:
  /// Throws Error{kNotFound} when the folder has no weights, else Error{kInvalidCheckpoint} that
  /// lists the problems: of each file (safetensors.h), a missing shard, a tensor that the index
  /// gives to a shard without it, one that the index does not list, one in two shards.
  explicit Checkpoint(const std::filesystem::path& folder);
  /// Adds problems instead of throwing for them.
  Checkpoint(const std::filesystem::path& folder, ProblemList& problems);

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// The file that says which tensors there are: the index, or the only weights file.
  std::string listing_file() const;
  std::size_t num_tensors() const { return tensors_.size(); }
  std::vector<std::string_view> names() const;  // ascending

  /// Where a tensor is. `tensor` points into `file`.
  struct Location {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };
  /// Null members when there is no such tensor.
  Location find(std::string_view name) const;

  /// Data aligned for its dtype: in the mapping, or in a copy owned by this object when an unusual
  /// writer left it misaligned. Valid while this object lives. The tensor must exist (asserted).
  TensorView view(std::string_view name) const;

  /// Says that the view is read soon, or not again: its pages are let go, so that resident memory
  /// while packing stays near the packed size. Views that are copies are left alone. Reading a
  /// dropped view again is allowed and pages it in again.
  void will_need(const TensorView& view) const;
  void drop(const TensorView& view) const;
  void drop(std::span<const std::byte> part_of_a_view) const;

 private:
  void open(ProblemList& problems);
  void open_indexed(const std::filesystem::path& index, ProblemList& problems);
  void add_file(const std::filesystem::path& path, ProblemList& problems);
  void copy_misaligned();

  std::filesystem::path folder_;
  bool is_indexed_ = false;
  std::vector<SafetensorsFile> files_;
  struct Place {
    std::size_t file = 0;
    std::size_t tensor = 0;
  };
  std::unordered_map<std::string_view, Place> tensors_;  // keys point into files_' headers
  std::unordered_map<std::string_view, Buffer> copies_;
};

}  // namespace winnow
