#include "model/load_decoder.h"

#include "base/machine.h"
#include "checkpoint/weights.h"

namespace winnow {

LoadedModel load_decoder(const std::filesystem::path& folder, const std::string& backend_name,
                         const DecoderOptions& options, const PackingProgress& progress) {
  ModelConfig config = read_model_config(folder);
  const ops::Backend backend = ops::make_backend(backend_name, detect_machine());
  auto checkpoint = std::make_unique<const Checkpoint>(folder);
  const ModelWeights weights = load_weights(*checkpoint, config);
  PackedWeights packed = pack_weights(*checkpoint, weights, backend, progress);
  auto decoder = std::make_unique<Decoder>(std::move(config), std::move(packed), backend, options);
  return {.checkpoint = std::move(checkpoint), .decoder = std::move(decoder)};
}

}  // namespace winnow
