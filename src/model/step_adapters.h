// The adapters of one step, as the operations of each layer take them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/packed_adapter.h"
#include "ops/lora/lora.h"

namespace winnow {

class StepAdapters {
 public:
  /// Throws Error{kInternal} unless each was packed for the backend that has this memory: a batch
  /// comes from the engine, and an engine at fault must cost its batch, not the process.
  void assign(std::span<const ModelAdapter* const> adapters, const ops::Memory* memory);

  /// PackedAdapter::serial() of each, in their order.
  std::vector<std::int64_t> serials() const;

  /// What the step's adapters add in one layer; indices of adapters are those of assign().
  struct LayerRows {
    ops::LoraRows<ops::LoraSite> qkv;
    ops::LoraRows<ops::LoraSite> output;
    ops::LoraRows<ops::LoraMlp> mlp;
    ops::LoraRows<ops::LoraMoe> moe;
  };
  /// Null without adapters. `adapter_of` is by token of the layer's view. Valid until the next
  /// call.
  const LayerRows* enter(int layer, const std::int32_t* adapter_of);

 private:
  std::vector<const PackedAdapter*> adapters_;
  std::vector<const ops::LoraSite*> qkv_, output_;
  std::vector<const ops::LoraMlp*> mlp_;
  std::vector<const ops::LoraMoe*> moe_;
  LayerRows rows_;
};

}  // namespace winnow
