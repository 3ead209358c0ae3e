#include "checkpoint/matrix_encoder.h"

#include <utility>

#include "base/assert.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_weight.h"

namespace winnow {

namespace {

bool is_mxfp8(MatrixSpelling spelling) {
  return spelling == MatrixSpelling::kMxfp8 || spelling == MatrixSpelling::kMxfp8PlainScale;
}

bool is_nvfp4(MatrixSpelling spelling) {
  return spelling == MatrixSpelling::kNvfp4Packed || spelling == MatrixSpelling::kNvfp4ModelOpt;
}

std::string data_suffix(MatrixSpelling spelling) {
  return spelling == MatrixSpelling::kNvfp4Packed ? ".weight_packed" : ".weight";
}

std::string scale_suffix(MatrixSpelling spelling) {
  return spelling == MatrixSpelling::kMxfp8 ? ".weight_scale_inv" : ".weight_scale";
}

}  // namespace

MatrixEncoder::MatrixEncoder(MatrixSpelling spelling, std::string module, std::int64_t rows,
                             std::int64_t cols, const BulkCodecs& codecs)
    : spelling_(spelling), module_(std::move(module)), rows_(rows), cols_(cols), codecs_(&codecs) {
  const std::int64_t group = is_mxfp8(spelling)   ? kMxfp8Group
                             : is_nvfp4(spelling) ? kNvfp4WeightGroup
                                                  : 1;
  WINNOW_ASSERT(cols % group == 0, "whole groups in a row", module_, cols, group);
}

std::vector<SafetensorsWriter::Tensor> MatrixEncoder::tensors() const {
  std::vector<SafetensorsWriter::Tensor> tensors;
  const std::string data = module_ + data_suffix(spelling_);
  switch (spelling_) {
    case MatrixSpelling::kF32:
      return {{data, DType::kF32, {rows_, cols_}}};
    case MatrixSpelling::kBF16:
      return {{data, DType::kBF16, {rows_, cols_}}};
    case MatrixSpelling::kMxfp8:
    case MatrixSpelling::kMxfp8PlainScale:
      return {{data, DType::kE4M3, {rows_, cols_}},
              {module_ + scale_suffix(spelling_), DType::kU8, {rows_, cols_ / kMxfp8Group}}};
    case MatrixSpelling::kNvfp4Packed:
    case MatrixSpelling::kNvfp4ModelOpt:
      break;
  }
  tensors = {{data, DType::kU8, {rows_, cols_ / 2}},
             {module_ + ".weight_scale", DType::kE4M3, {rows_, cols_ / kNvfp4WeightGroup}}};
  if (spelling_ == MatrixSpelling::kNvfp4Packed) {
    tensors.push_back({module_ + ".weight_global_scale", DType::kF32, {1}});
  } else {
    tensors.push_back({module_ + ".weight_scale_2", DType::kF32, {}});
    tensors.push_back({module_ + ".input_scale", DType::kF32, {}});
  }
  return tensors;
}

void MatrixEncoder::set_max_magnitude(float max_magnitude) {
  global_scale_ = nvfp4_weight_global_scale(max_magnitude);
}

void MatrixEncoder::append_rows(std::span<const float> values, SafetensorsWriter& writer) {
  const auto n = static_cast<std::int64_t>(values.size());
  WINNOW_ASSERT(n % cols_ == 0, "whole rows", n, cols_);
  const auto resize = [](std::vector<std::uint8_t>& bytes, std::int64_t size) {
    bytes.resize(static_cast<std::size_t>(size));
  };
  const std::string data = module_ + data_suffix(spelling_);
  if (spelling_ == MatrixSpelling::kF32) {
    writer.append(data, std::as_bytes(values));
    return;
  }
  if (spelling_ == MatrixSpelling::kBF16) {
    resize(data_, 2 * n);
    codecs_->encode_bf16(values.data(), reinterpret_cast<std::uint16_t*>(data_.data()), n);
    writer.append(data, std::as_bytes(std::span(data_)));
    return;
  }
  if (is_mxfp8(spelling_)) {
    resize(data_, n);
    resize(scales_, n / kMxfp8Group);
    codecs_->quantize_mxfp8(values.data(), data_.data(), scales_.data(), n);
  } else {
    WINNOW_ASSERT(global_scale_ > 0.F, "set_max_magnitude() came first", module_);
    resize(data_, n / 2);
    resize(scales_, n / kNvfp4WeightGroup);
    codecs_->quantize_nvfp4_weight(values.data(), global_scale_, data_.data(), scales_.data(), n);
  }
  writer.append(data, std::as_bytes(std::span(data_)));
  writer.append(module_ + scale_suffix(spelling_), std::as_bytes(std::span(scales_)));
}

void MatrixEncoder::finish(SafetensorsWriter& writer) const {
  const auto scalar = [&](const char* suffix, float value) {
    writer.append(module_ + suffix, std::as_bytes(std::span(&value, 1)));
  };
  if (spelling_ == MatrixSpelling::kNvfp4Packed) scalar(".weight_global_scale", global_scale_);
  if (spelling_ == MatrixSpelling::kNvfp4ModelOpt) {
    scalar(".weight_scale_2", multiplier_of_global_scale(global_scale_));
    scalar(".input_scale", 1.F);
  }
}

}  // namespace winnow
