// One tensor or matrix of a checkpoint at a time, in any of its spellings, checked: what the
// loaders of the model and of its drafter share. Source: spec/model.md section 2.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/problem_list.h"
#include "checkpoint/weights.h"

namespace winnow {

/// Remembers which tensors it has handed out. Problems are added, never thrown; what has one comes
/// back without data.
class TensorReader {
 public:
  /// All three must outlive it.
  TensorReader(const Checkpoint& checkpoint, const WeightLoadOptions& options,
               ProblemList& problems)
      : checkpoint_(checkpoint), options_(options), problems_(problems) {}

  /// `module`.weight [rows][cols] in any scheme; `meaning` says what the shape is made of.
  WeightMatrix matrix(const std::string& module, std::int64_t rows, std::int64_t cols,
                      std::string_view meaning);
  /// The same, BF16 or F32 alone.
  WeightMatrix plain_matrix(const std::string& module, std::int64_t rows, std::int64_t cols,
                            std::string_view meaning);
  /// The whole tensor `name` [size], BF16 or F32, widened.
  std::vector<float> vector(const std::string& name, std::int64_t size, std::string_view meaning);

  bool is_used(std::string_view name) const { return used_.contains(name); }
  /// Left-overs of quantisation that came along with matrices.
  std::vector<IgnoredTensor> take_ignored() { return std::exchange(ignored_, {}); }
  /// "model-00001-of-00002.safetensors: name"; for a tensor that is nowhere, the file that lists
  /// them.
  std::string at(const std::string& name) const;

 private:
  const StoredTensor* use(const std::string& name);
  void wrong_shape(const std::string& name, const StoredTensor& tensor,
                   std::span<const std::int64_t> expected, std::string_view meaning);
  bool check_shape(const std::string& name, const StoredTensor& tensor,
                   std::vector<std::int64_t> expected, std::string_view meaning);
  void read_plain(WeightMatrix& matrix, const StoredTensor& tensor, std::string_view meaning);
  void read_mxfp8(WeightMatrix& matrix, const StoredTensor& tensor, std::string_view meaning);
  void read_nvfp4(WeightMatrix& matrix, const StoredTensor& tensor, std::string_view meaning);
  void read_global_scale(WeightMatrix& matrix);
  void check_scales(const WeightMatrix& matrix, const std::string& name);

  const Checkpoint& checkpoint_;
  const WeightLoadOptions& options_;
  ProblemList& problems_;
  std::unordered_set<std::string_view> used_;
  std::vector<IgnoredTensor> ignored_;
};

}  // namespace winnow
