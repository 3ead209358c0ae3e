// A look inside a forward pass, for `winnow check` and for the page that shows which blocks each
// head kept. Called on the engine thread in the middle of a step; spans are valid during the call.
#pragma once

#include <cstdint>
#include <span>

#include "ops/batch_view.h"
#include "ops/cache_view.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow {

/// The indexer's decision in one layer, with what it was made from.
struct BlockSelectionView {
  int layer = 0;
  ops::AttentionShape shape;
  ops::BatchView batch;
  ops::CacheView cache;
  std::span<const float> index_q;        // [num_tokens][num_index_heads][index_head_dim]
  std::span<const std::int32_t> blocks;  // [num_tokens][num_index_heads][top_k_blocks], see ops
};

class DecoderTrace {
 public:
  virtual ~DecoderTrace() = default;

  /// False spares a device the copy of its whole pool for on_blocks(), which is then not called.
  virtual bool wants_blocks() const { return true; }
  virtual void on_blocks(const BlockSelectionView& /*selection*/) {}
  /// [num_tokens][top_k_experts], ascending expert id; weights before the routed scaling factor.
  virtual void on_experts(int /*layer*/, const ops::BatchView& /*batch*/,
                          std::span<const std::int32_t> /*experts*/,
                          std::span<const float> /*weights*/) {}
  /// Output of a decoder layer, both residuals added: [num_tokens][hidden_size].
  virtual void on_hidden(int /*layer*/, const ops::BatchView& /*batch*/,
                         std::span<const float> /*hidden*/) {}
};

}  // namespace winnow
