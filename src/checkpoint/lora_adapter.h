// A LoRA adapter in PEFT's on-disk format, matched with the model that it is for: a folder with
// adapter_config.json and adapter_model.safetensors (F32, F16 or BF16). A projection W becomes
// W + scale · B · A, A [rank][inputs], B [outputs][rank].
//
// Stacked experts (PEFT's target_parameters) share one pair of tensors: A [experts · rank][inputs]
// with the expert slowest, B [outputs][experts · rank] with the expert fastest (fault G1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/lora_names.h"
#include "checkpoint/model_config.h"
#include "checkpoint/problem_list.h"
#include "checkpoint/safetensors.h"
#include "formats/quant_scheme.h"

namespace winnow {

/// A matrix inside a tensor: element [row][col] is the tensor's element
/// first + row · row_stride + col · col_stride.
struct LoraFactor {
  const StoredTensor* tensor = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t first = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;
};

/// Inputs and outputs of a projection.
struct LoraExtent {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  friend bool operator==(const LoraExtent&, const LoraExtent&) = default;
};

/// Of a target that the model has.
LoraExtent lora_extent(const LoraTarget& target, const ModelConfig& config);

struct LoraPair {
  LoraTarget target;  // block never kAllExperts
  LoraFactor a;       // [rank][inputs]
  LoraFactor b;       // [outputs][rank]
  float scale = 0.F;
};

/// A factor's elements as a backend packs them, row-major.
struct LoraMatrix {
  QuantScheme scheme = QuantScheme::kF32;  // kBF16 of BF16 tensors; F16 is widened
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<std::byte> data;
};

class LoraAdapter {
 public:
  /// Reads the folder for the model that `config` describes. Throws Error{kNotFound} when it holds
  /// no adapter, Error{kIo}, and Error{kInvalidCheckpoint} that lists the problems: what
  /// adapter_config.json asks for and is not computed; tensors that are no pair of a projection of
  /// this model, of another dtype, shape or rank, or not finite; a rank above `max_rank`.
  LoraAdapter(const std::filesystem::path& folder, const ModelConfig& config,
              std::int32_t max_rank);

  /// By target, no two for one projection.
  const std::vector<LoraPair>& pairs() const { return pairs_; }
  std::int32_t rank() const { return rank_; }  // the largest
  /// Of names, shapes, scales and every byte of the tensors; never 0.
  std::uint64_t fingerprint() const { return fingerprint_; }

  LoraMatrix read(const LoraFactor& factor) const;

 private:
  friend class LoraReader;

  std::unique_ptr<SafetensorsFile> file_;  // `pairs_` points into it
  std::vector<LoraPair> pairs_;
  std::int32_t rank_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace winnow
