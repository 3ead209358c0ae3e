#include "ops/testing/random_matrix.h"

#include <cmath>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace winnow::ops::testing {

RandomMatrix::RandomMatrix(QuantScheme scheme, std::int64_t rows, std::int64_t cols,
                           RandomInputs& random)
    : scheme_(scheme), rows_(rows), cols_(cols) {
  const std::int64_t count = rows * cols;
  const float deviation = 1.0F / std::sqrt(static_cast<float>(cols));
  switch (scheme) {
    case QuantScheme::kF32:
      floats_ = random.normals(count, deviation);
      return;
    case QuantScheme::kBF16:
      for (const float x : random.normals(count, deviation)) halves_.push_back(encode_bf16(x));
      return;
    case QuantScheme::kMxfp8: {
      for (std::int64_t i = 0; i < count; ++i)
        bytes_.push_back(encode_e4m3(random.normal() * 64.0F));
      const int exponent = static_cast<int>(std::floor(std::log2(deviation / 64.0F)));
      for (std::int64_t i = 0; i < count / 32; ++i) {
        scales_.push_back(static_cast<std::uint8_t>(127 + exponent + random.below(3)));
      }
      return;
    }
    case QuantScheme::kNvfp4:
      bytes_ = random.bytes(count / 2);
      for (std::int64_t i = 0; i < count / 16; ++i) {
        scales_.push_back(encode_e4m3(random.uniform(0.0F, 448.0F)));
      }
      matrix_scale_ = deviation / 600.0F;
      return;
  }
}

MatrixSource RandomMatrix::source() const {
  const void* data = bytes_.data();
  if (scheme_ == QuantScheme::kF32) data = floats_.data();
  if (scheme_ == QuantScheme::kBF16) data = halves_.data();
  return {.scheme = scheme_,
          .rows = rows_,
          .cols = cols_,
          .data = data,
          .scales = scales_.empty() ? nullptr : scales_.data(),
          .matrix_scale = matrix_scale_};
}

double RandomMatrix::value(std::int64_t row, std::int64_t col) const {
  const auto at = static_cast<std::size_t>(row * cols_ + col);
  switch (scheme_) {
    case QuantScheme::kF32:
      return floats_[at];
    case QuantScheme::kBF16:
      return decode_bf16(halves_[at]);
    case QuantScheme::kMxfp8:
      return double{decode_e4m3(bytes_[at])} * decode_e8m0(scales_[at / 32]);
    case QuantScheme::kNvfp4:
      return double{decode_e2m1(static_cast<std::uint8_t>(bytes_[at / 2] >> (at % 2 * 4)))} *
             decode_e4m3(scales_[at / 16]) * matrix_scale_;
  }
  return 0.0;
}

}  // namespace winnow::ops::testing
