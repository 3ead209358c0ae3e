// y[t][n] = Σ_k x[t][k] · W[n][k]: every projection. Weights are packed once per backend.
//
// Numerics: fp32. Columns are summed in groups of 32 for MXFP8, 16 for NVFP4, and 32 for F32 and
// BF16: inside a group one fused multiply-add per column in ascending k from 0, on the element
// value without its scale; group sums join the row's sum in ascending order, acc = fma(scale,
// group, acc) (scale 1 for F32/BF16: acc += group). The NVFP4 matrix scale multiplies the finished
// sum once. So y[t][n] depends on x[t] and W[n] alone: not on the batch, the threads, or the
// instruction set.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/quant_scheme.h"
#include "ops/op_context.h"

namespace winnow::ops {

/// A matrix as the checkpoint stores it, row-major [rows][cols]; views, not owned.
struct MatrixSource {
  QuantScheme scheme = QuantScheme::kF32;
  std::int64_t rows = 0;                 // outputs
  std::int64_t cols = 0;                 // inputs
  const void* data = nullptr;            // float | bf16 bits | E4M3 bytes | two codes a byte
  const std::uint8_t* scales = nullptr;  // [rows][cols/32] E8M0 or [rows][cols/16] E4M3
  float matrix_scale = 1.0F;             // multiplies; NVFP4 only
};

/// A matrix without contents.
struct MatrixShape {
  QuantScheme scheme = QuantScheme::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// Weights in the layout of one backend. Shapes are checked when it is made: cols % 32 == 0 for
/// MXFP8 and % 16 for NVFP4, any rows.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  virtual std::int64_t num_bytes() const = 0;  // resident bytes of the packed form

 protected:
  PackedMatrix(std::int64_t rows, std::int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  std::int64_t rows_;
  std::int64_t cols_;
};

struct LinearParams {
  const float* x = nullptr;  // [num_rows][w->cols()], row stride x_stride
  std::int64_t x_stride = 0;
  const PackedMatrix* w = nullptr;
  float* y = nullptr;  // [num_rows][w->rows()], row stride y_stride
  std::int64_t y_stride = 0;
  std::int64_t num_rows = 0;
  bool accumulate = false;  // y += instead of y =
};

}  // namespace winnow::ops
