// Stores a float matrix in one of the published spellings: used by `winnow quantize` and by the
// writer of test checkpoints. The inverse of what weights.h reads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "formats/bulk_codecs.h"

namespace winnow {

enum class MatrixSpelling : std::uint8_t {
  kF32,              // weight F32
  kBF16,             // weight BF16
  kMxfp8,            // weight F8_E4M3, weight_scale_inv U8
  kMxfp8PlainScale,  // weight F8_E4M3, weight_scale U8 (ModelOpt)
  kNvfp4Packed,      // weight_packed U8, weight_scale F8_E4M3, weight_global_scale F32 (divides)
  kNvfp4ModelOpt,  // weight U8, weight_scale F8_E4M3, weight_scale_2 F32 (multiplies), input_scale
};

/// Encodes `module`'s matrix [rows][cols] row range by row range. cols must suit the spelling's
/// group (32 for MXFP8, 16 for NVFP4; asserted).
class MatrixEncoder {
 public:
  MatrixEncoder(MatrixSpelling spelling, std::string module, std::int64_t rows, std::int64_t cols,
                const BulkCodecs& codecs);

  /// What the file must hold; for SafetensorsWriter.
  std::vector<SafetensorsWriter::Tensor> tensors() const;

  /// Sets NVFP4's global scale from the largest magnitude of the matrix (of w1 and w3 together
  /// where they are to share it). Must precede append_rows() for NVFP4.
  void set_max_magnitude(float max_magnitude);

  /// Encodes the next rows and appends them to `writer`.
  void append_rows(std::span<const float> values, SafetensorsWriter& writer);

  /// Writes the scalars.
  void finish(SafetensorsWriter& writer) const;

 private:
  MatrixSpelling spelling_;
  std::string module_;
  std::int64_t rows_;
  std::int64_t cols_;
  const BulkCodecs* codecs_;
  float global_scale_ = 0.F;        // G, by which values are multiplied before they are coded
  std::vector<std::uint8_t> data_;  // of the rows in hand
  std::vector<std::uint8_t> scales_;
};

}  // namespace winnow
