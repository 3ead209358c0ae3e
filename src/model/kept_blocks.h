// Which KV blocks the indexer kept in each sparse layer of a step, for the rows of logits that a
// batch asks for: copied where the backend works, so that a recorded step stays recorded, and
// brought to the host in one piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/memory.h"

namespace winnow {

/// One step as this sees it.
struct KeptBlocksStep {
  std::span<const std::int32_t> rows;       // of logits, whose blocks are wanted
  std::span<const std::int32_t> tokens;     // of each row of logits: its token among all
  std::span<const std::int32_t> last_rows;  // the same among those that the last layer goes on with
  std::int64_t num_tokens = 0;
  bool is_recorded = false;  // every token is then copied: which are wanted differs at a replay
};

class KeptBlocks {
 public:
  /// `width`: groups × top_k of a layer.
  KeptBlocks(std::shared_ptr<ops::Memory> memory, std::int64_t num_layers, std::int64_t width)
      : memory_(std::move(memory)), num_layers_(num_layers), width_(width) {}

  /// Before the step's operations; the spans must live until end(). False: there is no memory for
  /// it, or nothing is wanted, and the step has no selections.
  [[nodiscard]] bool begin(const KeptBlocksStep& step);
  /// After the indexer of the `index`-th sparse layer wrote `blocks` of `num_tokens` tokens.
  void keep(std::int64_t index, const std::int32_t* blocks, std::int64_t num_tokens, bool is_last);
  /// After them. `last_is_sparse`: the model's last layer is one of the sparse ones.
  void end(bool last_is_sparse);
  /// No selections until the next end().
  void clear() { selections_.clear(); }

  /// [rows][num_layers][width] of the last step.
  std::span<const std::int32_t> selections() const { return selections_; }
  /// Changes when keep() writes elsewhere than before.
  std::int64_t generation() const { return generation_; }

 private:
  std::int32_t place_of(std::int32_t row, bool is_last) const;

  std::shared_ptr<ops::Memory> memory_;
  std::int64_t num_layers_;
  std::int64_t width_;
  KeptBlocksStep step_;
  std::int64_t num_places_ = 0;      // tokens or rows of a layer in buffer_
  ops::Array<std::int32_t> buffer_;  // [num_layers][num_places][width]
  std::vector<std::int32_t> host_;
  std::vector<std::int32_t> selections_;
  std::int64_t generation_ = 0;
  bool has_warned_ = false;
};

}  // namespace winnow
