// A *.safetensors file of any bytes: the header is accepted or refused with a problem; every view
// of an accepted file lies inside it; and an accepted file loads as a small model's weights or is
// refused by the loader.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/testing/random_checkpoint.h"
#include "checkpoint/testing/temporary_folder.h"
#include "checkpoint/weights.h"

namespace winnow {
namespace {

RandomCheckpoint smallest() {
  RandomCheckpoint options;
  options.vocab_size = 4;
  options.hidden_size = 32;
  options.num_heads = options.num_kv_heads = 1;
  options.head_dim = 32;
  options.dense_intermediate = options.moe_intermediate = options.shared_intermediate = 32;
  options.num_experts = 1;
  options.top_k_experts = 1;
  options.layers = {{.is_sparse_attention = true, .is_moe = true}};
  options.experts = MatrixSpelling::kNvfp4Packed;
  options.linears = MatrixSpelling::kMxfp8;
  return options;
}

void check_views(std::span<const std::byte> file, const SafetensorsHeader& header) {
  const auto size = static_cast<std::int64_t>(file.size());
  for (const StoredTensor& tensor : header.tensors) {
    const TensorView view{
        .data = file.data() + tensor.offset, .dtype = tensor.dtype, .shape = tensor.shape};
    WINNOW_ASSERT(view.num_bytes() == tensor.num_bytes, "size is shape × dtype", tensor.name);
    WINNOW_ASSERT(
        tensor.offset >= 8 && tensor.num_bytes >= 0 && tensor.offset + tensor.num_bytes <= size,
        "view lies inside the file", tensor.offset, tensor.num_bytes, size);
  }
}

// The folder of a valid small model whose weights file is replaced by the input.
class Folder {
 public:
  Folder() {
    write_random_checkpoint(folder_.path(), smallest());
    config_ = read_model_config(folder_.path());
  }

  void load(std::span<const std::byte> file) const {
    std::ofstream(folder_.path() / "model.safetensors", std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()),
               static_cast<std::streamsize>(file.size()));
    ProblemList problems;
    const Checkpoint checkpoint(folder_.path(), problems);
    const ModelWeights weights = load_weights(checkpoint, config_, {}, problems);
    if (!problems.empty()) return;
    std::vector<float> row(static_cast<std::size_t>(weights.layers[0].q.cols));
    dequantize_rows(weights.layers[0].q, weights.layers[0].q.rows - 1, weights.layers[0].q.rows,
                    row.data());
  }

 private:
  TemporaryFolder folder_;
  ModelConfig config_;
};

}  // namespace
}  // namespace winnow

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace winnow;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  ProblemList problems;
  const SafetensorsHeader header = parse_safetensors(file, "input", problems);
  check_views(file, header);
  if (!problems.empty()) return 0;
  static const Folder folder;
  try {
    folder.load(file);
  } catch (const Error& error) {
    WINNOW_ASSERT(!error.text().empty(), "an error says something");
  }
  return 0;
}
