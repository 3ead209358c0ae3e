#include "ops/linear/check_sources.h"

#include <fmt/format.h>

#include "base/error.h"

namespace winnow::ops {
namespace {

[[noreturn]] void refuse(const MatrixSource& source, const char* what) {
  throw Error(ErrorCode::kInvalidCheckpoint,
              fmt::format("weight matrix of {} x {}: {}", source.rows, source.cols, what));
}

}  // namespace

std::int64_t group_columns(QuantScheme scheme) { return scheme == QuantScheme::kNvfp4 ? 16 : 32; }

bool has_scales(QuantScheme scheme) {
  return scheme == QuantScheme::kMxfp8 || scheme == QuantScheme::kNvfp4;
}

std::int64_t stacked_rows(std::span<const MatrixSource> stacked) {
  std::int64_t rows = 0;
  for (const MatrixSource& source : stacked) rows += source.rows;
  return rows;
}

void check_sources(std::span<const MatrixSource> stacked) {
  if (stacked.empty()) throw Error(ErrorCode::kInvalidCheckpoint, "no weight matrix to pack");
  for (const MatrixSource& source : stacked) {
    if (source.rows <= 0 || source.cols <= 0) refuse(source, "empty");
    if (source.cols != stacked.front().cols) refuse(source, "other columns than its neighbours");
    if (source.data == nullptr) refuse(source, "no data");
    if (!has_scales(source.scheme)) continue;
    if (source.scales == nullptr) refuse(source, "no scales");
    if (source.cols % group_columns(source.scheme) != 0) {
      refuse(source, "columns are not whole groups of its scales");
    }
  }
}

}  // namespace winnow::ops
