#include "checkpoint/weights.h"

#include <cstring>

#include "base/assert.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_weight.h"

namespace winnow {

void dequantize_rows(const WeightMatrix& matrix, std::int64_t row_begin, std::int64_t row_end,
                     float* out, const BulkCodecs& codecs) {
  WINNOW_ASSERT(row_begin >= 0 && row_begin <= row_end && row_end <= matrix.rows,
                "rows of the matrix", row_begin, row_end, matrix.rows);
  // Groups never cross a row, so a range of rows is one run of values.
  const std::int64_t begin = row_begin * matrix.cols;
  const std::int64_t n = (row_end - row_begin) * matrix.cols;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(matrix.data.data);
  const auto* scales = reinterpret_cast<const std::uint8_t*>(matrix.scales.data);
  switch (matrix.scheme) {
    case QuantScheme::kF32:
      std::memcpy(out, bytes + begin * 4, static_cast<std::size_t>(n) * sizeof(float));
      return;
    case QuantScheme::kBF16:
      codecs.decode_bf16(reinterpret_cast<const std::uint16_t*>(bytes) + begin, out, n);
      return;
    case QuantScheme::kMxfp8:
      codecs.dequantize_mxfp8(bytes + begin, scales + begin / kMxfp8Group, out, n);
      return;
    case QuantScheme::kNvfp4:
      codecs.dequantize_nvfp4_weight(bytes + begin / 2, scales + begin / kNvfp4WeightGroup,
                                     matrix.global_scale, out, n);
      return;
  }
}

void drop_pages(const Checkpoint& checkpoint, const WeightMatrix& matrix) {
  checkpoint.drop(matrix.data);
  if (matrix.scales.data != nullptr) checkpoint.drop(matrix.scales);
}

}  // namespace winnow
