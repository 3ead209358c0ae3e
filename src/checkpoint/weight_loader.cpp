// Finds each tensor of the model under its names and spellings and checks it; see weights.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>

#include "checkpoint/weights.h"
#include "formats/bf16.h"
#include "formats/e8m0.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_weight.h"

namespace winnow {

namespace {

// Why a tensor whose name has this segment is not read by the text model.
struct IgnoredSegment {
  std::string_view segment;
  const char* reason;
};
constexpr IgnoredSegment kIgnoredSegments[] = {
    {"vision_tower", "vision"},    {"multi_modal_projector", "vision"},
    {"patch_merge_mlp", "vision"}, {"mtp", "multi-token prediction"},
    {"dspark", "DSpark drafter"},
};

const char* reason_to_ignore(std::string_view name) {
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view segment = name.substr(begin, end - begin);
    for (const IgnoredSegment& ignored : kIgnoredSegments) {
      if (segment == ignored.segment) return ignored.reason;
    }
    begin = end + 1;
  }
  return nullptr;
}

// Offset of the first byte that is no scale: NaN, or an E4M3 with the sign bit set, which
// hardware reads as its magnitude. -1 when all are good.
std::int64_t find_bad_scale(const TensorView& scales, bool is_e8m0) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales.data);
  const std::int64_t size = scales.num_bytes();
  const unsigned limit = is_e8m0 ? kE8m0NaN : 0x7F;
  constexpr std::int64_t kChunk = 4096;  // branch-free inside, so that it vectorises
  for (std::int64_t begin = 0; begin < size; begin += kChunk) {
    const std::int64_t end = std::min(begin + kChunk, size);
    unsigned is_bad = 0;
    for (std::int64_t i = begin; i < end; ++i) is_bad |= static_cast<unsigned>(bytes[i] >= limit);
    if (is_bad == 0) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (bytes[i] >= limit) return i;
    }
  }
  return -1;
}

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config,
               const WeightLoadOptions& options, ProblemList& problems)
      : checkpoint_(checkpoint), config_(config), options_(options), problems_(problems) {}

  ModelWeights load();

 private:
  const StoredTensor* use(const std::string& name);
  std::string at(const std::string& name) const;
  void wrong_shape(const std::string& name, const StoredTensor& tensor,
                   std::span<const std::int64_t> expected, std::string_view meaning);
  bool check_shape(const std::string& name, const StoredTensor& tensor,
                   std::vector<std::int64_t> expected, std::string_view meaning);

  WeightMatrix matrix(const std::string& module, std::int64_t rows, std::int64_t cols,
                      std::string_view meaning);
  void read_plain(WeightMatrix& matrix, const StoredTensor& tensor, std::string_view meaning);
  void read_mxfp8(WeightMatrix& matrix, const StoredTensor& tensor, std::string_view meaning);
  void read_nvfp4(WeightMatrix& matrix, const StoredTensor& tensor, std::string_view meaning);
  void read_global_scale(WeightMatrix& matrix);
  void check_scales(const WeightMatrix& matrix, const std::string& name);
  std::vector<float> vector(const std::string& name, std::int64_t size, std::string_view meaning);

  LayerWeights layer(int index);
  IndexWeights index_branch(const std::string& attention);
  GatedMlp dense_mlp(const std::string& prefix);
  MoeWeights moe(const std::string& prefix);
  void account_for_the_rest(ModelWeights& weights);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const WeightLoadOptions& options_;
  ProblemList& problems_;
  std::unordered_set<std::string_view> used_;
  std::vector<IgnoredTensor> ignored_;
  std::string root_;  // "language_model." or ""
};

// The tensor, marked as used; null when it is not there.
const StoredTensor* WeightLoader::use(const std::string& name) {
  const Checkpoint::Location location = checkpoint_.find(name);
  if (location.tensor != nullptr) used_.insert(location.tensor->name);
  return location.tensor;
}

// "model-00001-of-00002.safetensors: name"; for a tensor that is nowhere, the file that lists them.
std::string WeightLoader::at(const std::string& name) const {
  const Checkpoint::Location location = checkpoint_.find(name);
  const std::string file = location.file != nullptr ? location.file->path().filename().string()
                                                    : checkpoint_.listing_file();
  return fmt::format("{}: {}", file, printable(name));
}

void WeightLoader::wrong_shape(const std::string& name, const StoredTensor& tensor,
                               std::span<const std::int64_t> expected, std::string_view meaning) {
  problems_.add(
      fmt::format("{}: shape {}, expected {} ({}); is config.json from another checkpoint?",
                  at(name), shape_text(tensor.shape), shape_text(expected), meaning));
}

bool WeightLoader::check_shape(const std::string& name, const StoredTensor& tensor,
                               std::vector<std::int64_t> expected, std::string_view meaning) {
  if (tensor.shape == expected) return true;
  wrong_shape(name, tensor, expected, meaning);
  return false;
}

WeightMatrix WeightLoader::matrix(const std::string& module, std::int64_t rows, std::int64_t cols,
                                  std::string_view meaning) {
  WeightMatrix matrix;
  matrix.name = module;
  matrix.rows = rows;
  matrix.cols = cols;
  const StoredTensor* packed = use(module + ".weight_packed");
  const StoredTensor* plain = use(module + ".weight");
  if (packed != nullptr && plain != nullptr) {
    problems_.add(fmt::format("{}: both .weight_packed and .weight are there, expected one",
                              at(plain->name)));
    return matrix;
  }
  const StoredTensor* tensor = packed != nullptr ? packed : plain;
  if (tensor == nullptr) {
    problems_.add(fmt::format("{}: missing, expected {} ({}), or .weight_packed with its scales",
                              at(module + ".weight"), shape_text(std::vector{rows, cols}),
                              meaning));
    return matrix;
  }
  const DType dtype = tensor->dtype;
  if (packed != nullptr || dtype == DType::kU8) {
    read_nvfp4(matrix, *tensor, meaning);
  } else if (dtype == DType::kE4M3) {
    read_mxfp8(matrix, *tensor, meaning);
  } else {
    read_plain(matrix, *tensor, meaning);
  }
  return matrix;
}

void WeightLoader::read_plain(WeightMatrix& matrix, const StoredTensor& tensor,
                              std::string_view meaning) {
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16) {
    problems_.add(fmt::format("{}: dtype {}, expected BF16, F32, F8_E4M3 (MXFP8) or U8 (NVFP4)",
                              at(tensor.name), dtype_name(tensor.dtype)));
    return;
  }
  matrix.scheme = tensor.dtype == DType::kF32 ? QuantScheme::kF32 : QuantScheme::kBF16;
  if (check_shape(tensor.name, tensor, {matrix.rows, matrix.cols}, meaning)) {
    matrix.data = checkpoint_.view(tensor.name);
  }
}

void WeightLoader::read_mxfp8(WeightMatrix& matrix, const StoredTensor& tensor,
                              std::string_view meaning) {
  matrix.scheme = QuantScheme::kMxfp8;
  const StoredTensor* inverse = use(matrix.name + ".weight_scale_inv");
  const StoredTensor* plain = use(matrix.name + ".weight_scale");
  if ((inverse == nullptr) == (plain == nullptr)) {
    problems_.add(
        fmt::format("{}: {} its scale, expected {}.weight_scale_inv or .weight_scale, U8 "
                    "{} (E8M0, one per 32 inputs)",
                    at(tensor.name), plain == nullptr ? "without" : "with two tensors for",
                    matrix.name, shape_text(std::vector{matrix.rows, matrix.cols / kMxfp8Group})));
    return;
  }
  const StoredTensor& scale = inverse != nullptr ? *inverse : *plain;
  if (scale.dtype != DType::kU8) {
    problems_.add(
        fmt::format("{}: dtype {}, expected U8 (E8M0, one per 32 inputs); FP8 with float "
                    "block scales is not read",
                    at(scale.name), dtype_name(scale.dtype)));
    return;
  }
  if (matrix.cols % kMxfp8Group != 0) {
    problems_.add(fmt::format("{}: {} inputs, expected a multiple of 32 for MXFP8", at(tensor.name),
                              matrix.cols));
    return;
  }
  const bool is_right =
      check_shape(tensor.name, tensor, {matrix.rows, matrix.cols}, meaning) &&
      check_shape(scale.name, scale, {matrix.rows, matrix.cols / kMxfp8Group}, "one per 32 inputs");
  if (!is_right) return;
  matrix.data = checkpoint_.view(tensor.name);
  matrix.scales = checkpoint_.view(scale.name);
  check_scales(matrix, scale.name);
}

void WeightLoader::read_nvfp4(WeightMatrix& matrix, const StoredTensor& tensor,
                              std::string_view meaning) {
  matrix.scheme = QuantScheme::kNvfp4;
  // Scales of 4-bit activations: not used, activations stay wider here.
  for (const char* suffix : {".input_scale", ".input_global_scale"}) {
    if (const StoredTensor* scale = use(matrix.name + suffix)) {
      ignored_.push_back({scale->name, scale->num_bytes, "scale of 4-bit activations", false});
    }
  }
  read_global_scale(matrix);
  const StoredTensor* scale = use(matrix.name + ".weight_scale");
  if (scale == nullptr) {
    problems_.add(
        fmt::format("{}: without its scales, expected {}.weight_scale, F8_E4M3 {} (one "
                    "per 16 inputs)",
                    at(tensor.name), matrix.name,
                    shape_text(std::vector{matrix.rows, matrix.cols / kNvfp4WeightGroup})));
    return;
  }
  if (tensor.dtype != DType::kU8 || scale->dtype != DType::kE4M3) {
    problems_.add(fmt::format("{}: dtype {} with scales {}, expected U8 with F8_E4M3 (NVFP4)",
                              at(tensor.name), dtype_name(tensor.dtype), dtype_name(scale->dtype)));
    return;
  }
  if (matrix.cols % kNvfp4WeightGroup != 0) {
    problems_.add(fmt::format("{}: {} inputs, expected a multiple of 16 for NVFP4", at(tensor.name),
                              matrix.cols));
    return;
  }
  const bool is_right =
      check_shape(tensor.name, tensor, {matrix.rows, matrix.cols / 2},
                  fmt::format("{}, two codes a byte", meaning)) &&
      check_shape(scale->name, *scale, {matrix.rows, matrix.cols / kNvfp4WeightGroup},
                  "one per 16 inputs");
  if (!is_right) return;
  matrix.data = checkpoint_.view(tensor.name);
  matrix.scales = checkpoint_.view(scale->name);
  check_scales(matrix, scale->name);
}

// weight_global_scale divides and weight_scale_2 multiplies: the name decides (model.md trap 19).
void WeightLoader::read_global_scale(WeightMatrix& matrix) {
  const StoredTensor* divisor = use(matrix.name + ".weight_global_scale");
  const StoredTensor* multiplier = use(matrix.name + ".weight_scale_2");
  if ((divisor == nullptr) == (multiplier == nullptr)) {
    problems_.add(
        fmt::format("{}: {}, expected {}.weight_global_scale (which divides) or "
                    ".weight_scale_2 (which multiplies), F32 []",
                    matrix.name, divisor == nullptr ? "global scale missing" : "two global scales",
                    matrix.name));
    return;
  }
  const StoredTensor& tensor = divisor != nullptr ? *divisor : *multiplier;
  const bool is_scalar = tensor.shape.empty() || tensor.shape == std::vector<std::int64_t>{1};
  if (tensor.dtype != DType::kF32 || !is_scalar) {
    problems_.add(fmt::format("{}: {} {}, expected F32 [] or [1]", at(tensor.name),
                              dtype_name(tensor.dtype), shape_text(tensor.shape)));
    return;
  }
  float value = 0.F;
  std::memcpy(&value, checkpoint_.view(tensor.name).data, sizeof(value));
  // Checked as the float that kernels multiply by: what is 0, infinite or subnormal there would
  // silence the matrix or fill it with NaN.
  const float factor = divisor != nullptr ? multiplier_of_global_scale(value) : value;
  if (!(value > 0.F) || !std::isnormal(value) || !std::isnormal(factor)) {
    problems_.add(fmt::format("{}: {}, expected a positive normal float", at(tensor.name), value));
    return;
  }
  matrix.global_scale = factor;
}

void WeightLoader::check_scales(const WeightMatrix& matrix, const std::string& name) {
  if (!options_.check_scales) return;
  const bool is_e8m0 = matrix.scheme == QuantScheme::kMxfp8;
  checkpoint_.will_need(matrix.scales);  // one request to the disk instead of a fault per few pages
  const std::int64_t bad = find_bad_scale(matrix.scales, is_e8m0);
  if (!options_.keep_scales) checkpoint_.drop(matrix.scales);
  if (bad < 0) return;
  const std::int64_t per_row = matrix.scales.shape[1];
  const auto byte = std::to_integer<unsigned>(matrix.scales.data[bad]);
  const bool is_nan = is_e8m0 || (byte & 0x7F) == 0x7F;
  problems_.add(fmt::format("{}: scale [{}, {}] is {} (byte 0x{:02X}), expected a {}", at(name),
                            bad / per_row, bad % per_row, is_nan ? "NaN" : "negative", byte,
                            is_e8m0 ? "power of two" : "number from 0 to 448"));
}

std::vector<float> WeightLoader::vector(const std::string& name, std::int64_t size,
                                        std::string_view meaning) {
  std::vector<float> values(static_cast<std::size_t>(size));
  const StoredTensor* tensor = use(name);
  if (tensor == nullptr) {
    problems_.add(fmt::format("{}: missing, expected {} ({})", at(name),
                              shape_text(std::vector{size}), meaning));
    return values;
  }
  if (tensor->dtype != DType::kF32 && tensor->dtype != DType::kBF16) {
    problems_.add(
        fmt::format("{}: dtype {}, expected BF16 or F32", at(name), dtype_name(tensor->dtype)));
    return values;
  }
  if (!check_shape(name, *tensor, {size}, meaning)) return values;
  const TensorView view = checkpoint_.view(name);
  if (tensor->dtype == DType::kF32) {
    std::memcpy(values.data(), view.data, values.size() * sizeof(float));
  } else {
    kScalarCodecs.decode_bf16(reinterpret_cast<const std::uint16_t*>(view.data), values.data(),
                              size);
  }
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    problems_.add(fmt::format("{}: element {} is {}, expected a finite number", at(name),
                              bad - values.begin(), *bad));
  }
  return values;
}

IndexWeights WeightLoader::index_branch(const std::string& attention) {
  const std::int64_t dim = config_.index_head_dim;
  return {
      .q = matrix(attention + "index_q_proj", config_.index_num_heads * dim, config_.hidden_size,
                  "index_heads * index_head_dim × hidden_size"),
      .k = matrix(attention + "index_k_proj", dim, config_.hidden_size,
                  "index_head_dim × hidden_size"),
      .q_norm = vector(attention + "index_q_norm.weight", dim, "index_head_dim"),
      .k_norm = vector(attention + "index_k_norm.weight", dim, "index_head_dim"),
  };
}

// `mlp.` as published; transformers saves a dense layer's under `block_sparse_moe.`.
GatedMlp WeightLoader::dense_mlp(const std::string& prefix) {
  const auto is_there = [&](std::string_view folder) {
    for (const char* suffix : {".weight", ".weight_packed"}) {
      if (checkpoint_.find(fmt::format("{}{}.gate_proj{}", prefix, folder, suffix)).tensor) {
        return true;
      }
    }
    return false;
  };
  const std::string base =
      prefix + (!is_there("mlp") && is_there("block_sparse_moe") ? "block_sparse_moe." : "mlp.");
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = config_.dense_intermediate;
  return {
      .gate = matrix(base + "gate_proj", width, hidden, "dense_intermediate_size × hidden_size"),
      .up = matrix(base + "up_proj", width, hidden, "dense_intermediate_size × hidden_size"),
      .down = matrix(base + "down_proj", hidden, width, "hidden_size × dense_intermediate_size")};
}

MoeWeights WeightLoader::moe(const std::string& prefix) {
  const std::string base = prefix + "block_sparse_moe.";
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = config_.moe_intermediate;
  MoeWeights moe;
  moe.router =
      matrix(base + "gate", config_.num_experts, hidden, "num_local_experts × hidden_size");
  moe.router_bias =
      vector(base + "e_score_correction_bias", config_.num_experts, "num_local_experts");
  moe.experts.reserve(static_cast<std::size_t>(config_.num_experts));
  for (int e = 0; e < config_.num_experts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", base, e);
    moe.experts.push_back(
        {.gate = matrix(expert + "w1", width, hidden, "intermediate_size × hidden_size"),
         .up = matrix(expert + "w3", width, hidden, "intermediate_size × hidden_size"),
         .down = matrix(expert + "w2", hidden, width, "hidden_size × intermediate_size")});
  }
  const std::string shared = base + "shared_experts.";
  const std::int64_t shared_width = config_.shared_intermediate;
  moe.shared = {.gate = matrix(shared + "gate_proj", shared_width, hidden,
                               "shared_intermediate_size × hidden_size"),
                .up = matrix(shared + "up_proj", shared_width, hidden,
                             "shared_intermediate_size × hidden_size"),
                .down = matrix(shared + "down_proj", hidden, shared_width,
                               "hidden_size × shared_intermediate_size")};
  return moe;
}

LayerWeights WeightLoader::layer(int index) {
  const std::string prefix = fmt::format("{}model.layers.{}.", root_, index);
  const std::string attention = prefix + "self_attn.";
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t q_width = std::int64_t{config_.num_heads} * config_.head_dim;
  const std::int64_t kv_width = std::int64_t{config_.num_kv_heads} * config_.head_dim;
  const LayerConfig& kind = config_.layers[static_cast<std::size_t>(index)];
  LayerWeights layer;
  layer.input_norm = vector(prefix + "input_layernorm.weight", hidden, "hidden_size");
  layer.post_attention_norm =
      vector(prefix + "post_attention_layernorm.weight", hidden, "hidden_size");
  layer.q =
      matrix(attention + "q_proj", q_width, hidden, "num_attention_heads * head_dim × hidden_size");
  layer.k = matrix(attention + "k_proj", kv_width, hidden,
                   "num_key_value_heads * head_dim × hidden_size");
  layer.v = matrix(attention + "v_proj", kv_width, hidden,
                   "num_key_value_heads * head_dim × hidden_size");
  layer.o =
      matrix(attention + "o_proj", hidden, q_width, "hidden_size × num_attention_heads * head_dim");
  layer.q_norm = vector(attention + "q_norm.weight", config_.head_dim, "head_dim");
  layer.k_norm = vector(attention + "k_norm.weight", config_.head_dim, "head_dim");
  if (kind.is_sparse_attention) layer.index = index_branch(attention);
  if (kind.is_moe) {
    layer.mlp = moe(prefix);
  } else {
    layer.mlp = dense_mlp(prefix);
  }
  return layer;
}

// Whatever no part of the model has used must be ignored on purpose, or is a problem.
void WeightLoader::account_for_the_rest(ModelWeights& weights) {
  weights.ignored = std::move(ignored_);
  for (const std::string_view name : checkpoint_.names()) {
    if (used_.contains(name)) continue;
    const Checkpoint::Location location = checkpoint_.find(name);
    if (const char* reason = reason_to_ignore(name)) {
      weights.ignored.push_back({std::string(name), location.tensor->num_bytes, reason, true});
      continue;
    }
    problems_.add(fmt::format("{}: {} {} {} is not part of the model that config.json describes",
                              location.file->path().filename().string(), printable(name),
                              dtype_name(location.tensor->dtype),
                              shape_text(location.tensor->shape)));
  }
}

ModelWeights WeightLoader::load() {
  ModelWeights weights;
  const bool is_nested =
      checkpoint_.find("language_model.model.norm.weight").tensor != nullptr ||
      checkpoint_.find("language_model.model.embed_tokens.weight").tensor != nullptr;
  const bool is_flat = checkpoint_.find("model.norm.weight").tensor != nullptr ||
                       checkpoint_.find("model.embed_tokens.weight").tensor != nullptr;
  root_ = is_nested || !is_flat ? "language_model." : "";

  const std::int64_t hidden = config_.hidden_size;
  weights.embed =
      matrix(root_ + "model.embed_tokens", config_.vocab_size, hidden, "vocab_size × hidden_size");
  weights.layers.reserve(config_.layers.size());
  for (int i = 0; i < config_.num_layers; ++i) weights.layers.push_back(layer(i));
  weights.final_norm = vector(root_ + "model.norm.weight", hidden, "hidden_size");
  const bool is_tied =
      config_.tie_word_embeddings && checkpoint_.find(root_ + "lm_head.weight").tensor == nullptr;
  weights.lm_head =
      is_tied ? weights.embed
              : matrix(root_ + "lm_head", config_.vocab_size, hidden, "vocab_size × hidden_size");
  account_for_the_rest(weights);
  return weights;
}

}  // namespace

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const WeightLoadOptions& options, ProblemList& problems) {
  return WeightLoader(checkpoint, config, options, problems).load();
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                          const WeightLoadOptions& options) {
  ProblemList problems;
  ModelWeights weights = load_weights(checkpoint, config, options, problems);
  problems.throw_if_any(checkpoint.folder().string());
  return weights;
}

}  // namespace winnow
