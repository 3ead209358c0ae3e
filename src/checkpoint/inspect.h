// What is in a model folder and what is wrong with it: the logic of `winnow inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/drafter_config.h"
#include "checkpoint/model_config.h"
#include "formats/cache_row.h"

namespace winnow {

struct Inspection {
  std::filesystem::path folder;
  std::optional<ModelConfig> config;     // absent when config.json has problems
  std::optional<DrafterConfig> drafter;  // absent without dspark/, or when its config has problems

  int num_files = 0;  // safetensors files of the model
  std::int64_t num_tensors = 0;
  std::int64_t tensor_bytes = 0;

  /// Weights of one kind in one scheme, e.g. routed experts in nvfp4.
  struct WeightGroup {
    std::string part;    // "embedding", "attention", "indexer", "routed experts", …
    std::string scheme;  // "f32", "bf16", "mxfp8", "nvfp4"
    std::int64_t num_matrices = 0;
    std::int64_t num_parameters = 0;
    std::int64_t num_bytes = 0;  // scales included
  };
  std::vector<WeightGroup> weights;

  struct IgnoredGroup {
    std::string reason;
    std::int64_t num_tensors = 0;
    std::int64_t num_bytes = 0;
    std::string example;
  };
  std::vector<IgnoredGroup> ignored;

  /// Bytes of one token in a cache of this dtype on one rank that holds all heads.
  struct CacheBytes {
    CacheDType dtype = CacheDType::kBF16;
    std::int64_t kv = 0;
    std::int64_t index = 0;
  };
  std::vector<CacheBytes> cache;

  struct FrontEndFile {
    std::string name;
    std::string purpose;
    bool is_present = false;
  };
  std::vector<FrontEndFile> front_end;

  std::vector<std::string> problems;  // the model cannot be served
  std::vector<std::string> warnings;  // it can, with less

  bool is_usable() const { return problems.empty(); }
};

/// Reads headers, small vectors and, with `check_scales`, every scale (a tenth of an M3.1
/// checkpoint); never the weights themselves. Collects every problem instead of throwing; a folder
/// that does not exist is a problem too.
Inspection inspect_checkpoint(const std::filesystem::path& folder, bool check_scales = true);

/// For people, ends with a line that says whether the model can be served.
std::string render_inspection(const Inspection& inspection);

/// The same as one JSON object: keys are the member names above.
nlohmann::ordered_json inspection_to_json(const Inspection& inspection);

/// "1.82 GB" (10^9), "512 B".
std::string bytes_text(std::int64_t num_bytes);

}  // namespace winnow
