// An adapter folder of any bytes: the input up to its first zero byte is adapter_config.json, the
// rest adapter_model.safetensors. Refused with a problem, or read with every factor inside the file
// and of the model's sizes.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <span>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/lora_adapter.h"
#include "checkpoint/testing/random_adapter.h"
#include "checkpoint/testing/temporary_folder.h"

namespace {

using namespace winnow;

void check_accepted(const LoraAdapter& adapter, const ModelConfig& config) {
  WINNOW_ASSERT(adapter.fingerprint() != 0, "a fingerprint");
  const LoraPair* previous = nullptr;
  for (const LoraPair& pair : adapter.pairs()) {
    WINNOW_ASSERT(pair.target.layer >= 0 && pair.target.layer < config.num_layers, "a layer");
    WINNOW_ASSERT(pair.target.expert >= 0 && pair.target.expert < config.num_experts, "an expert");
    WINNOW_ASSERT(pair.target.block != LoraBlock::kAllExperts, "experts are taken apart");
    WINNOW_ASSERT(pair.a.rows == pair.b.cols && pair.a.rows <= adapter.rank(), "one rank");
    WINNOW_ASSERT(previous == nullptr || previous->target < pair.target, "sorted, none twice");
    const LoraMatrix a = adapter.read(pair.a);
    const LoraMatrix b = adapter.read(pair.b);
    WINNOW_ASSERT(a.rows == pair.a.rows && b.cols == pair.b.cols, "read whole");
    previous = &pair;
  }
}

void write(const std::filesystem::path& path, std::span<const std::uint8_t> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFolder folder;
  static const ModelConfig config = smallest_lora_target();
  const std::span<const std::uint8_t> input(data, size);
  const auto split =
      static_cast<std::size_t>(std::find(input.begin(), input.end(), 0) - input.begin());
  write(folder.path() / "adapter_config.json", input.first(split));
  write(folder.path() / "adapter_model.safetensors",
        input.subspan(std::min(split + 1, input.size())));
  try {
    check_accepted(LoraAdapter(folder.path(), config, 64), config);
  } catch (const Error& error) {
    WINNOW_ASSERT(!error.text().empty(), "an error says something");
  }
  return 0;
}
