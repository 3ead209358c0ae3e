// Writes a checkpoint in M3.1's layout: the logic of `winnow quantize`. Routed experts become NVFP4
// (nvfp4-pack-quantized), every other linear MXFP8; embedding, lm_head and norms BF16; the router
// and its bias F32; everything that is not part of the text model is copied as it is.
// Source: spec/model.md sections 0, 2 and 4.5.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace winnow {

struct QuantizeOptions {
  std::int64_t max_shard_bytes = 5'000'000'000;
  /// Replace an output folder that holds a checkpoint.
  bool force = false;
  /// Called after every piece with the source bytes read so far and in all, and the tensor in hand.
  std::function<void(std::int64_t done, std::int64_t total, std::string_view tensor)> progress;
};

struct QuantizeResult {
  int num_shards = 0;
  std::int64_t bytes_in = 0;   // tensors read
  std::int64_t bytes_out = 0;  // safetensors files written
};

/// Reads `input`, writes `output`. Weights are streamed in pieces of some megabytes, and source
/// pages are let go, so memory does not grow with the model. w1 and w3 of an expert share their
/// global scale. The result appears all at once: it is written beside `output`, checked by loading
/// it, then renamed. Throws Error: kInvalidArgument when `output` is not empty (without `force`),
/// holds something else than a checkpoint, or is `input`; kInvalidCheckpoint for the input's
/// problems, a non-finite weight, or a width that the formats' groups do not divide; kIo.
QuantizeResult quantize_checkpoint(const std::filesystem::path& input,
                                   const std::filesystem::path& output,
                                   const QuantizeOptions& options = {});

}  // namespace winnow
