#include "model/step_adapters.h"

#include "base/error.h"

namespace winnow {

void StepAdapters::assign(std::span<const ModelAdapter* const> adapters,
                          const ops::Memory* memory) {
  adapters_.clear();
  for (const ModelAdapter* const adapter : adapters) {
    const auto* const packed = dynamic_cast<const PackedAdapter*>(adapter);
    if (packed == nullptr || packed->memory() != memory) {
      throw Error(ErrorCode::kInternal, "batch: an adapter that this runner has not loaded");
    }
    adapters_.push_back(packed);
  }
  qkv_.resize(adapters_.size());
  output_.resize(adapters_.size());
  mlp_.resize(adapters_.size());
  moe_.resize(adapters_.size());
}

std::vector<std::int64_t> StepAdapters::serials() const {
  std::vector<std::int64_t> serials;
  for (const PackedAdapter* const adapter : adapters_) serials.push_back(adapter->serial());
  return serials;
}

const StepAdapters::LayerRows* StepAdapters::enter(int layer, const std::int32_t* adapter_of) {
  if (adapters_.empty()) return nullptr;
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    const PackedAdapter::Layer& adapter = adapters_[i]->layer(layer);
    qkv_[i] = &adapter.qkv;
    output_[i] = &adapter.output;
    mlp_[i] = &adapter.mlp;
    moe_[i] = &adapter.moe;
  }
  rows_ = {.qkv = {.adapter_of = adapter_of, .adapters = qkv_},
           .output = {.adapter_of = adapter_of, .adapters = output_},
           .mlp = {.adapter_of = adapter_of, .adapters = mlp_},
           .moe = {.adapter_of = adapter_of, .adapters = moe_}};
  return &rows_;
}

}  // namespace winnow
