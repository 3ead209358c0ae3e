// A layer of experts of which only the tokens with adapters are wanted: who they are is known on
// the device alone, so lists of them are made there.
#pragma once

#include <cstdint>

#include "ops/linear/cuda_exact.h"
#include "ops/mlp/cuda_exact.h"
#include "ops/moe/moe.h"

namespace winnow::cuda {

/// The adapters of a call.
struct MoeAdapters {
  /// Null: none.
  explicit MoeAdapters(const ops::LoraRows<ops::LoraMoe>* rows);

  bool add_anything() const { return experts.rank() > 0 || shared.rank() > 0; }

  exact::MlpAdapters experts;  // tables by expert
  exact::MlpAdapters shared;
};

/// wanted[t]: whether the adapter of token t adds anything in this layer.
void mark_adapted(CUstream_st* stream, const MoeAdapters& adapters, std::int64_t num_tokens,
                  std::int32_t* wanted);

/// to[t] = from[t] for the wanted tokens; rows of `width` values.
void copy_wanted(CUstream_st* stream, const std::int32_t* wanted, std::int64_t num_tokens,
                 std::int64_t width, const float* from, float* to);
void copy_wanted(CUstream_st* stream, const std::int32_t* wanted, std::int64_t num_tokens,
                 std::int64_t width, const std::int32_t* from, std::int32_t* to);

/// The wanted tokens one behind the other, in no particular order.
struct WantedList {
  std::int32_t* tokens = nullptr;      // [num_tokens]; -1 behind the last
  std::int32_t* place_of = nullptr;    // [num_tokens]; of those that are wanted
  exact::ExpertRows* items = nullptr;  // [num_items] of places, all for expert 0
};

/// Items of at most `item_rows` places; num_items of them hold num_tokens.
void list_wanted(CUstream_st* stream, const std::int32_t* wanted, std::int64_t num_tokens,
                 std::int32_t item_rows, std::int32_t num_items, const WantedList& list);

namespace exact {

/// moe() for the wanted tokens; y and choices of others stay. Takes scratch behind what is taken,
/// and resets nothing.
void moe_of(const ops::OpContext& context, const ops::MoeParams& params,
            const MoeAdapters& adapters, const std::int32_t* wanted);

}  // namespace exact
}  // namespace winnow::cuda
