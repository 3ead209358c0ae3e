#include <vector>

#include "ops/lora/lora.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"

namespace winnow::scalar {
namespace {

/// Rows that lie one behind the other and have one adapter.
void add_rows(const ops::OpContext& context, const ops::LoraSite& site,
              const ops::LoraParams& rows) {
  const std::int64_t rank = site.a->rows();
  std::vector<float> u(static_cast<std::size_t>(rows.num_rows * rank));
  linear(context, {.x = rows.x,
                   .x_stride = rows.x_stride,
                   .w = site.a,
                   .y = u.data(),
                   .y_stride = rank,
                   .num_rows = rows.num_rows});
  for (std::size_t i = 0; i < u.size(); ++i)
    u[i] *= site.scales[i % static_cast<std::size_t>(rank)];
  for (const ops::LoraPart& part : site.parts) {
    linear(context, {.x = u.data() + part.first_rank,
                     .x_stride = rank,
                     .w = part.b,
                     .y = rows.y + part.first_row,
                     .y_stride = rows.y_stride,
                     .num_rows = rows.num_rows,
                     .accumulate = true});
  }
}

}  // namespace

void lora(const ops::OpContext& context, const ops::LoraParams& params) {
  for (std::int64_t first = 0; first < params.num_rows;) {
    const ops::LoraSite* const site = params.rows.of(first);
    std::int64_t end = first + 1;
    while (end < params.num_rows && params.rows.of(end) == site) ++end;
    if (site != nullptr && site->a != nullptr) {
      add_rows(context, *site,
               {.num_rows = end - first,
                .x = params.x + first * params.x_stride,
                .x_stride = params.x_stride,
                .y = params.y + first * params.y_stride,
                .y_stride = params.y_stride});
    }
    first = end;
  }
}

}  // namespace winnow::scalar
