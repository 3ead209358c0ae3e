// Row i of `to` = row rows[i] of `from`: the tokens that the last layer and the logits go on with.
#pragma once

#include <cstdint>

namespace winnow::ops {

struct KeepRowsParams {
  const float* from = nullptr;         // [≥ every rows[i] + 1][width]
  const std::int32_t* rows = nullptr;  // [num_rows], ascending
  std::int64_t num_rows = 0;
  std::int64_t width = 0;
  float* to = nullptr;  // [num_rows][width], not overlapping `from`
};

}  // namespace winnow::ops
