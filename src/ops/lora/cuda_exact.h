// What adapters add to the rows of a projection, in the order that lora.h writes down: the products
// of one row with the matrices of one adapter, whatever rows stand beside it. Both kernel sets use
// it.
#pragma once

#include <cstdint>

#include "ops/lora/cuda_table.h"

struct CUstream_st;

namespace winnow::cuda::exact {

/// Values of u at one projection, all parts together: what a block keeps in shared memory.
inline constexpr std::int64_t kMaxLoraRank = 8192;

/// Rows of a projection; device pointers.
struct LoraOperands {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* x_rows = nullptr;  // the row of x that row i reads; null: row i
  float* y = nullptr;                    // added to
  std::int64_t y_stride = 0;
  std::int64_t num_rows = 0;
  const std::int32_t* token_of = nullptr;   // by row, -1: nobody's; null: the row itself
  const std::int32_t* expert_of = nullptr;  // by row: entry of the tables; null: their only one
};

/// Bytes of scratch for each row.
inline std::int64_t lora_row_bytes(const LoraTables& tables) {
  return tables.rank() * static_cast<std::int64_t>(sizeof(float));
}

/// `first_token`: of tables.adapter_of(), the token that token_of calls 0. `u`: num_rows times
/// tables.rank().
void add_lora(CUstream_st* stream, const LoraTables& tables, std::int64_t first_token,
              const LoraOperands& operands, float* u);

}  // namespace winnow::cuda::exact
