#include "ops/moe/cuda_experts.h"

#include <fmt/format.h>

#include "base/error.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"

namespace winnow::cuda {
namespace {

const CudaMatrix& matrix_of(const ops::PackedMatrix* matrix) {
  return *static_cast<const CudaMatrix*>(matrix);
}

/// Rows [first, first + rows) of a stack: a part of its own, or whole tiles of one.
MatrixPart rows_of(const CudaMatrix& matrix, std::int64_t first, std::int64_t rows) {
  for (MatrixPart part : matrix.parts()) {
    const std::int64_t skipped = first - part.first_row;
    if (skipped < 0 || skipped + rows > part.rows || skipped % kTileRows != 0) continue;
    part.data += skipped / kTileRows * part.num_chunks * chunk_bytes(part.scheme);
    part.first_row = 0;
    part.rows = rows;
    part.num_tiles = (rows + kTileRows - 1) / kTileRows;
    return part;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("expert weights: rows {} to {} of {} are not whole tiles of one matrix",
                          first, first + rows, matrix.rows()));
}

DeviceMlp device_mlp(const ops::MlpWeights& weights) {
  const CudaMatrix& gate_up = matrix_of(weights.gate_up);
  const std::int64_t width = weights.down->cols();
  return {.gate = rows_of(gate_up, 0, width),
          .up = rows_of(gate_up, width, width),
          .down = rows_of(matrix_of(weights.down), 0, weights.down->rows())};
}

}  // namespace

std::unique_ptr<ops::ExpertTable> bind_experts(Context& context,
                                               std::span<const ops::MlpWeights> experts,
                                               const ops::MlpWeights& shared) {
  std::vector<DeviceMlp> host;
  std::int64_t hidden = 0;
  std::int64_t width = 0;
  for (const ops::MlpWeights& expert : experts) {
    if (!host.empty() && (expert.down->rows() != hidden || expert.down->cols() != width)) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("expert {} is {} x {}, the others are {} x {}", host.size(),
                              expert.down->rows(), expert.down->cols(), hidden, width));
    }
    hidden = expert.down->rows();
    width = expert.down->cols();
    host.push_back(device_mlp(expert));
  }
  const bool has_shared = shared.gate_up != nullptr;
  if (has_shared) host.push_back(device_mlp(shared));
  ops::Array<DeviceMlp> device(context.memory(), std::span<const DeviceMlp>(host),
                               "the table of experts");
  return std::make_unique<CudaExperts>(std::move(host), std::move(device), hidden, width,
                                       has_shared ? shared.down->cols() : 0);
}

}  // namespace winnow::cuda
