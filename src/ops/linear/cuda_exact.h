// linear() in its written order over rows that only the device knows: what exact::moe() is made of.
#pragma once

#include <cstdint>

#include "ops/linear/cuda_matrix.h"

struct CUstream_st;

namespace winnow::cuda {
struct DeviceMlp;
}

namespace winnow::cuda::exact {

/// Rows [first, first + count) of a list, all for one expert.
struct ExpertRows {
  std::int32_t expert = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;  // 0: nothing to do
};

/// y[i] = W_expert · x[x_rows[i]] for every i of every item.
struct GroupedLinear {
  const DeviceMlp* experts = nullptr;  // device, as the rest
  bool is_down = false;                // W is `down`; else `gate`, then `up` beside it
  std::int64_t rows = 0;               // outputs of W
  std::int64_t cols = 0;
  const ExpertRows* items = nullptr;  // [num_items], each at most `item_rows` long
  std::int32_t num_items = 0;         // a bound that the host knows
  std::int32_t item_rows = 0;         // kFewRows or kTileTokens
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* x_rows = nullptr;  // null: row i itself
  float* y = nullptr;
  std::int64_t y_stride = 0;
};

inline constexpr std::int32_t kFewRows = 4;      // inputs of the kernel that splits columns
inline constexpr std::int32_t kTileTokens = 64;  // inputs of the kernel that splits outputs

void grouped_linear(CUstream_st* stream, const GroupedLinear& work);

}  // namespace winnow::cuda::exact
