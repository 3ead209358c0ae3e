// `winnow check DIR`: runs the forward pass on the prompt of golden.safetensors and measures how
// far it is from the public implementation, layer by layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/cache_codec.h"

namespace winnow {

struct CheckOptions {
  std::filesystem::path golden = {};   // empty: golden.safetensors in the model's folder
  std::filesystem::path adapter = {};  // a folder (checkpoint/lora_adapter.h); empty: none
  std::string backend = "auto";        // ops::make_backend
  CacheDType kv_dtype = CacheDType::kF32;
  CacheDType index_dtype = CacheDType::kF32;
  std::optional<DequantMode> dequant = std::nullopt;
  std::int32_t chunk_tokens = 0;  // tokens of one step; 0: the whole prompt at once
  int num_threads = 0;
  double tolerance = 1e-4;  // of an error relative to the largest reference magnitude
};

/// One compared quantity.
struct CheckLine {
  std::string what;  // "logits", "hidden.3", "blocks.3", …
  /// Largest |ours - reference|, that over the largest |reference|, and the median over rows of a
  /// row's root mean squared error over its reference (a few flipped experts do not move it); for
  /// values.
  double max_error = 0.0;
  double relative_error = 0.0;
  double median_error = 0.0;
  /// For choices: how many were compared, how many differ, and how many of those only swap members
  /// whose scores tie within the tolerance.
  std::int64_t num_compared = 0;
  std::int64_t num_different = 0;
  std::int64_t num_ties = 0;
  bool is_choice = false;
  bool passed = false;
};

struct CheckReport {
  std::string title;  // backend, cache dtypes, chunk
  std::vector<CheckLine> lines;
  double seconds = 0.0;
  bool passed = false;

  /// A table for people.
  std::string text() const;
};

/// Throws Error when the folder cannot be loaded or has no golden.safetensors.
CheckReport check_model(const std::filesystem::path& folder, const CheckOptions& options);

}  // namespace winnow
