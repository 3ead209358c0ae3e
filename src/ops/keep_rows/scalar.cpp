#include <algorithm>

#include "ops/keep_rows/keep_rows.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"

namespace winnow::scalar {

void keep_rows(const ops::OpContext& /*context*/, const ops::KeepRowsParams& params) {
  for (std::int64_t i = 0; i < params.num_rows; ++i) {
    std::copy_n(params.from + params.rows[i] * params.width, params.width,
                params.to + i * params.width);
  }
}

}  // namespace winnow::scalar
