// From a checkpoint folder to a decoder: config, weights, packing.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/checkpoint.h"
#include "model/decoder.h"

namespace winnow {

struct LoadedModel {
  std::unique_ptr<const Checkpoint> checkpoint;  // the embedding table is read from its mapping
  std::unique_ptr<Decoder> decoder;
};

/// `backend` as in ops::make_backend. Throws Error on whatever is wrong with folder or options.
LoadedModel load_decoder(const std::filesystem::path& folder, const std::string& backend,
                         const DecoderOptions& options, const PackingProgress& progress = {});

}  // namespace winnow
