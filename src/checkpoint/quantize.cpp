#include "checkpoint/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/machine.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder_swap.h"
#include "checkpoint/json_file.h"
#include "checkpoint/matrix_encoder.h"
#include "checkpoint/weights.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_weight.h"

namespace winnow {

namespace {

constexpr std::uint32_t kInfinity = 0x7F800000;
constexpr std::int64_t kPieceValues = std::int64_t{1} << 20;  // 4 MiB of floats: fits a cache

/// One thing to write: a matrix to encode, or a tensor to copy (perhaps widened to F32).
struct Job {
  const WeightMatrix* matrix = nullptr;
  MatrixSpelling spelling = MatrixSpelling::kBF16;
  std::string module;                     // name in the output
  const WeightMatrix* partner = nullptr;  // shares the NVFP4 global scale

  std::string tensor;                           // copied when matrix is null
  const std::vector<float>* widened = nullptr;  // written as F32 in place of the tensor's bytes

  std::int64_t source_bytes = 0;
  std::int64_t output_bytes = 0;
};

std::string with_published_mlp_name(std::string module) {
  const std::string_view saved = ".block_sparse_moe.";
  if (const std::size_t at = module.rfind(saved); at != std::string::npos) {
    module.replace(at, saved.size(), ".mlp.");
  }
  return module;
}

class Quantizer {
 public:
  Quantizer(const std::filesystem::path& input, const QuantizeOptions& options)
      : checkpoint_(input),
        config_(read_model_config(input)),
        weights_(load_weights(checkpoint_, config_)),
        options_(options),
        codecs_(bulk_codecs(detect_machine().best_isa)) {
    plan();
  }

  std::int64_t output_bytes() const {
    std::int64_t sum = 0;
    for (const Job& job : jobs_) sum += job.output_bytes;
    return sum;
  }

  QuantizeResult write(const std::filesystem::path& folder);

 private:
  void plan();
  void plan_layer(const LayerWeights& layer, const std::string& prefix);
  void add(const WeightMatrix& matrix, MatrixSpelling spelling);
  void add(const WeightMatrix& matrix, MatrixSpelling spelling, std::string module,
           const WeightMatrix* partner);
  void add_experts(const MoeWeights& moe);
  void copy(const std::string& tensor);
  void add_widened(const std::string& tensor, const std::vector<float>& values);

  std::vector<SafetensorsWriter::Tensor> tensors_of(const Job& job) const;
  MatrixEncoder encoder_of(const Job& job) const {
    return {job.spelling, job.module, job.matrix->rows, job.matrix->cols, codecs_};
  }
  void write_matrix(const Job& job, SafetensorsWriter& writer);
  void write_copy(const Job& job, SafetensorsWriter& writer);
  float max_magnitude(const WeightMatrix& matrix);
  template <typename Use>
  void for_each_piece(const WeightMatrix& matrix, Use use);
  void report(std::int64_t bytes, std::string_view tensor);

  Checkpoint checkpoint_;
  ModelConfig config_;
  ModelWeights weights_;
  const QuantizeOptions& options_;
  const BulkCodecs& codecs_;
  std::vector<Job> jobs_;
  std::vector<float> piece_;
  std::unordered_map<const WeightMatrix*, float> magnitudes_;  // w1 and w3 are asked twice
  std::int64_t total_bytes_ = 0;
  std::int64_t done_bytes_ = 0;
};

void Quantizer::add(const WeightMatrix& matrix, MatrixSpelling spelling, std::string module,
                    const WeightMatrix* partner) {
  const bool is_nvfp4 = spelling == MatrixSpelling::kNvfp4Packed;
  const bool is_mxfp8 = spelling == MatrixSpelling::kMxfp8;
  const std::int64_t group = is_nvfp4 ? kNvfp4WeightGroup : is_mxfp8 ? kMxfp8Group : 1;
  if (matrix.cols % group != 0) {
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: {} inputs, expected a multiple of {} to be stored as {}",
                            matrix.name, matrix.cols, group, is_nvfp4 ? "NVFP4" : "MXFP8"));
  }
  Job job;
  job.matrix = &matrix;
  job.spelling = spelling;
  job.module = std::move(module);
  job.partner = partner;
  job.source_bytes = matrix.num_bytes();
  jobs_.push_back(std::move(job));
}

void Quantizer::add(const WeightMatrix& matrix, MatrixSpelling spelling) {
  add(matrix, spelling, matrix.name, nullptr);
}

void Quantizer::copy(const std::string& tensor) {
  Job job;
  job.tensor = tensor;
  job.source_bytes = checkpoint_.find(tensor).tensor->num_bytes;
  jobs_.push_back(std::move(job));
}

void Quantizer::add_widened(const std::string& tensor, const std::vector<float>& values) {
  copy(tensor);
  jobs_.back().widened = &values;
}

void Quantizer::add_experts(const MoeWeights& moe) {
  for (const GatedMlp& expert : moe.experts) {
    add(expert.gate, MatrixSpelling::kNvfp4Packed, expert.gate.name, &expert.up);
    add(expert.up, MatrixSpelling::kNvfp4Packed, expert.up.name, &expert.gate);
    add(expert.down, MatrixSpelling::kNvfp4Packed);
  }
}

void Quantizer::plan_layer(const LayerWeights& layer, const std::string& prefix) {
  const std::string attention = prefix + "self_attn.";
  copy(prefix + "input_layernorm.weight");
  copy(prefix + "post_attention_layernorm.weight");
  for (const WeightMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o}) {
    add(*matrix, MatrixSpelling::kMxfp8);
  }
  copy(attention + "q_norm.weight");
  copy(attention + "k_norm.weight");
  if (layer.index) {
    add(layer.index->q, MatrixSpelling::kMxfp8);
    add(layer.index->k, MatrixSpelling::kMxfp8);
    copy(attention + "index_q_norm.weight");
    copy(attention + "index_k_norm.weight");
  }
  if (const auto* dense = std::get_if<GatedMlp>(&layer.mlp)) {
    for (const WeightMatrix* matrix : {&dense->gate, &dense->up, &dense->down}) {
      add(*matrix, MatrixSpelling::kMxfp8, with_published_mlp_name(matrix->name), nullptr);
    }
    return;
  }
  const auto& moe = std::get<MoeWeights>(layer.mlp);
  add(moe.router, MatrixSpelling::kF32);
  add_widened(prefix + "block_sparse_moe.e_score_correction_bias", moe.router_bias);
  add_experts(moe);
  for (const WeightMatrix* matrix : {&moe.shared.gate, &moe.shared.up, &moe.shared.down}) {
    add(*matrix, MatrixSpelling::kMxfp8);
  }
}

void Quantizer::plan() {
  add(weights_.embed, MatrixSpelling::kBF16);
  // "language_model.model.layers.0.": what precedes the projection's own name.
  for (const LayerWeights& layer : weights_.layers) {
    plan_layer(layer, layer.q.name.substr(0, layer.q.name.rfind("self_attn.")));
  }
  const std::string root = weights_.embed.name.substr(0, weights_.embed.name.rfind("embed_tokens"));
  copy(root + "norm.weight");
  if (weights_.lm_head.name != weights_.embed.name) add(weights_.lm_head, MatrixSpelling::kBF16);
  for (const IgnoredTensor& tensor : weights_.ignored) {
    if (tensor.is_part_of_another_model) copy(tensor.name);
  }
  for (Job& job : jobs_) {
    total_bytes_ += job.source_bytes;
    for (const SafetensorsWriter::Tensor& tensor : tensors_of(job)) {
      std::int64_t bytes = dtype_bytes(tensor.dtype);
      for (const std::int64_t extent : tensor.shape) bytes *= extent;
      job.output_bytes += bytes;
    }
  }
}

std::vector<SafetensorsWriter::Tensor> Quantizer::tensors_of(const Job& job) const {
  if (job.matrix != nullptr) return encoder_of(job).tensors();
  const StoredTensor& source = *checkpoint_.find(job.tensor).tensor;
  return {{job.tensor, job.widened != nullptr ? DType::kF32 : source.dtype, source.shape}};
}

void Quantizer::report(std::int64_t bytes, std::string_view tensor) {
  done_bytes_ += bytes;
  if (options_.progress)
    options_.progress(std::min(done_bytes_, total_bytes_), total_bytes_, tensor);
}

template <typename Use>
void Quantizer::for_each_piece(const WeightMatrix& matrix, Use use) {
  const std::int64_t rows = std::max<std::int64_t>(1, kPieceValues / matrix.cols);
  for (std::int64_t row = 0; row < matrix.rows; row += rows) {
    const std::int64_t end = std::min(row + rows, matrix.rows);
    piece_.resize(static_cast<std::size_t>((end - row) * matrix.cols));
    dequantize_rows(matrix, row, end, piece_.data(), codecs_);
    use(row, std::span<const float>(piece_));
    // The scales, where the input has any, go with the whole matrix.
    const std::int64_t row_bytes = matrix.data.num_bytes() / matrix.rows;
    checkpoint_.drop(
        {matrix.data.data + row * row_bytes, static_cast<std::size_t>((end - row) * row_bytes)});
  }
}

// Throws when an element is not finite: no format here could store it.
float Quantizer::max_magnitude(const WeightMatrix& matrix) {
  if (const auto known = magnitudes_.find(&matrix); known != magnitudes_.end()) {
    return known->second;
  }
  std::uint32_t largest = 0;
  for_each_piece(matrix, [&](std::int64_t row, std::span<const float> values) {
    std::uint32_t bits = 0;
    for (const float value : values) {
      bits = std::max(bits, std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU);
    }
    largest = std::max(largest, bits);
    if (bits < kInfinity) return;
    const auto bad = std::find_if(values.begin(), values.end(), [](float value) {
      return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) >= kInfinity;
    });
    const std::int64_t at = row * matrix.cols + (bad - values.begin());
    throw Error(ErrorCode::kInvalidCheckpoint,
                fmt::format("{}: element [{}, {}] is {}, expected a finite number", matrix.name,
                            at / matrix.cols, at % matrix.cols, *bad));
  });
  return magnitudes_[&matrix] = std::bit_cast<float>(largest);
}

void Quantizer::write_matrix(const Job& job, SafetensorsWriter& writer) {
  const WeightMatrix& matrix = *job.matrix;
  MatrixEncoder encoder = encoder_of(job);
  float largest = max_magnitude(matrix);
  if (job.partner != nullptr) largest = std::max(largest, max_magnitude(*job.partner));
  encoder.set_max_magnitude(largest);
  for_each_piece(matrix, [&](std::int64_t, std::span<const float> values) {
    encoder.append_rows(values, writer);
    report(
        static_cast<std::int64_t>(values.size()) * matrix.num_bytes() / (matrix.rows * matrix.cols),
        matrix.name);
  });
  encoder.finish(writer);
  drop_pages(checkpoint_, matrix);
}

void Quantizer::write_copy(const Job& job, SafetensorsWriter& writer) {
  const TensorView view = checkpoint_.view(job.tensor);
  if (job.widened != nullptr) {
    writer.append(job.tensor, std::as_bytes(std::span(*job.widened)));
  } else {
    writer.append(job.tensor, {view.data, static_cast<std::size_t>(view.num_bytes())});
  }
  checkpoint_.drop(view);
  report(view.num_bytes(), job.tensor);
}

QuantizeResult Quantizer::write(const std::filesystem::path& folder) {
  // Jobs in order, cut where the next one would pass the limit.
  std::vector<std::size_t> ends;
  std::int64_t shard_bytes = 0;
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    if (shard_bytes > 0 && shard_bytes + jobs_[i].output_bytes > options_.max_shard_bytes) {
      ends.push_back(i);
      shard_bytes = 0;
    }
    shard_bytes += jobs_[i].output_bytes;
  }
  ends.push_back(jobs_.size());

  QuantizeResult result{
      .num_shards = static_cast<int>(ends.size()), .bytes_in = total_bytes_, .bytes_out = 0};
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  std::size_t begin = 0;
  for (std::size_t shard = 0; shard < ends.size(); ++shard) {
    const std::string name =
        ends.size() == 1 ? std::string("model.safetensors")
                         : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, ends.size());
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (std::size_t i = begin; i < ends[shard]; ++i) {
      for (auto& tensor : tensors_of(jobs_[i])) {
        weight_map[tensor.name] = name;
        tensors.push_back(std::move(tensor));
      }
    }
    SafetensorsWriter writer(folder / name, std::move(tensors));
    for (std::size_t i = begin; i < ends[shard]; ++i) {
      if (jobs_[i].matrix != nullptr) {
        write_matrix(jobs_[i], writer);
      } else {
        write_copy(jobs_[i], writer);
      }
    }
    writer.finish();
    result.bytes_out += writer.file_bytes();
    begin = ends[shard];
  }
  if (ends.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", output_bytes()}}},
                                          {"weight_map", weight_map}};
    write_text_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  return result;
}

// The input's config.json with the quantisation of M3.1's layout.
void write_config(const std::filesystem::path& input, const std::filesystem::path& output) {
  const std::filesystem::path path = input / "config.json";
  read_json_object(path);  // with its limits
  std::ifstream file(path);
  auto config = nlohmann::ordered_json::parse(file);
  if (config.contains("text_config")) config["text_config"].erase("quantization_config");
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (nlohmann::ordered_json* object : {&config, &config["text_config"]}) {
      if (object->is_object() && object->contains(key)) (*object)[key] = "bfloat16";
    }
  }
  if (config["text_config"].is_null()) config.erase("text_config");
  nlohmann::ordered_json quantization = {{"quant_method", "mxfp8"},
                                         {"weight_block_size", {1, 32}},
                                         {"moe_quant_algo", "NVFP4"},
                                         {"moe_quant_format", "nvfp4-pack-quantized"}};
  if (config.contains("quantization_config") &&
      config["quantization_config"].contains("kv_cache_quant_algo")) {
    quantization["kv_cache_quant_algo"] = config["quantization_config"]["kv_cache_quant_algo"];
  }
  config["quantization_config"] = quantization;
  write_text_file(output / "config.json", config.dump(2) + "\n");
}

}  // namespace

QuantizeResult quantize_checkpoint(const std::filesystem::path& input,
                                   const std::filesystem::path& output,
                                   const QuantizeOptions& options) {
  FolderSwap swap(input, output, options.force);
  Quantizer quantizer(input, options);
  swap.require_space(quantizer.output_bytes());
  const QuantizeResult result = quantizer.write(swap.folder());
  write_config(input, swap.folder());
  swap.copy_small_files();
  // What cannot be loaded does not appear.
  load_weights(Checkpoint(swap.folder()), read_model_config(swap.folder()),
               {.check_scales = true, .keep_scales = false});
  swap.commit();
  return result;
}

}  // namespace winnow
