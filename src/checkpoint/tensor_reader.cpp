#include "checkpoint/tensor_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/bf16.h"
#include "formats/e8m0.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_weight.h"

namespace winnow {

namespace {

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

}  // namespace

// The tensor, marked as used; null when it is not there.
const StoredTensor* TensorReader::use(const std::string& name) {
  const Checkpoint::Location location = checkpoint_.find(name);
  if (location.tensor != nullptr) used_.insert(location.tensor->name);
  return location.tensor;
}

std::string TensorReader::at(const std::string& name) const {
  const Checkpoint::Location location = checkpoint_.find(name);
  const std::string file = location.file != nullptr ? location.file->path().filename().string()
                                                    : checkpoint_.listing_file();
  return fmt::format("{}: {}", file, printable(name));
}

void TensorReader::wrong_shape(const std::string& name, const StoredTensor& tensor,
                               std::span<const std::int64_t> expected, std::string_view meaning) {
  problems_.add(
      fmt::format("{}: shape {}, expected {} ({}); is config.json from another checkpoint?",
                  at(name), shape_text(tensor.shape), shape_text(expected), meaning));
}

bool TensorReader::check_shape(const std::string& name, const StoredTensor& tensor,
                               std::vector<std::int64_t> expected, std::string_view meaning) {
  if (tensor.shape == expected) return true;
  wrong_shape(name, tensor, expected, meaning);
  return false;
}

WeightMatrix TensorReader::matrix(const std::string& module, std::int64_t rows, std::int64_t cols,
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

WeightMatrix TensorReader::plain_matrix(const std::string& module, std::int64_t rows,
                                        std::int64_t cols, std::string_view meaning) {
  WeightMatrix matrix;
  matrix.name = module;
  matrix.rows = rows;
  matrix.cols = cols;
  const StoredTensor* tensor = use(module + ".weight");
  if (tensor == nullptr) {
    problems_.add(fmt::format("{}: missing, expected {} ({})", at(module + ".weight"),
                              shape_text(std::vector{rows, cols}), meaning));
  } else if (tensor->dtype != DType::kF32 && tensor->dtype != DType::kBF16) {
    problems_.add(fmt::format("{}: dtype {}, expected BF16 or F32", at(tensor->name),
                              dtype_name(tensor->dtype)));
  } else {
    read_plain(matrix, *tensor, meaning);
  }
  return matrix;
}

void TensorReader::read_plain(WeightMatrix& matrix, const StoredTensor& tensor,
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

void TensorReader::read_mxfp8(WeightMatrix& matrix, const StoredTensor& tensor,
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

void TensorReader::read_nvfp4(WeightMatrix& matrix, const StoredTensor& tensor,
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
void TensorReader::read_global_scale(WeightMatrix& matrix) {
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

void TensorReader::check_scales(const WeightMatrix& matrix, const std::string& name) {
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

std::vector<float> TensorReader::vector(const std::string& name, std::int64_t size,
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

}  // namespace winnow
