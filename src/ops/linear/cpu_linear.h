// `linear` on the CPU kernels, for the operations that are built from it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "ops/cpu_kernels.h"
#include "ops/linear/linear.h"

namespace winnow::cpu {

/// Rows of one source: panels of one scheme (layout in cpu_kernel.h).
struct Segment {
  QuantScheme scheme = QuantScheme::kF32;
  std::int64_t first_output = 0;  // of the stacked matrix
  std::int64_t num_outputs = 0;
  std::int64_t num_panels = 0;
  const std::uint8_t* weights = nullptr;
  /// [num_panels × 16]: the matrix scale; NaN for a row that holds a NaN weight or scale.
  std::vector<float> row_scales;
};

class Matrix final : public ops::PackedMatrix {
 public:
  explicit Matrix(std::span<const ops::MatrixSource> stacked);
  std::int64_t num_bytes() const override { return weights_.size(); }
  std::span<const Segment> segments() const { return segments_; }

 private:
  Buffer weights_;
  std::vector<Segment> segments_;
};

std::unique_ptr<ops::PackedMatrix> pack(std::span<const ops::MatrixSource> stacked);

/// Runs all of `products`, none of which may depend on another, under one barrier. Takes scratch
/// and does not reset it.
void multiply(const Kernels& kernels, const ops::OpContext& context,
              std::span<const ops::LinearParams> products);

}  // namespace winnow::cpu
