// A LoRA adapter in the layout of one backend.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "model/model_adapter.h"
#include "ops/backend.h"

namespace winnow {

class LoraAdapter;
struct ModelConfig;

class PackedAdapter final : public ModelAdapter {
 public:
  /// What it adds in one layer; views into itself.
  struct Layer {
    ops::LoraSite qkv;
    ops::LoraSite output;
    ops::LoraMlp mlp;  // of a layer without experts
    ops::LoraMoe moe;
  };

  /// Throws Error{kOutOfMemory}, and what packing throws. On any thread.
  PackedAdapter(const LoraAdapter& adapter, const ModelConfig& config, const ops::Backend& backend);

  std::int64_t num_bytes() const override { return num_bytes_; }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::int32_t rank() const override { return rank_; }

  const Layer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  /// Of this one and no other of the process, before or after.
  std::int64_t serial() const { return serial_; }
  /// Of the backend that it was packed for.
  const ops::Memory* memory() const { return memory_.get(); }

 private:
  friend class AdapterPacker;

  std::shared_ptr<ops::Memory> memory_;
  std::vector<Layer> layers_;
  std::int64_t num_bytes_ = 0;
  std::uint64_t fingerprint_ = 0;
  std::int32_t rank_ = 0;
  std::int64_t serial_ = 0;
  // What the views point to; a deque's members stay where they are.
  std::deque<std::unique_ptr<ops::PackedMatrix>> matrices_;
  std::deque<std::vector<ops::LoraPart>> parts_;
  std::deque<ops::Array<float>> scales_;
  std::deque<std::vector<ops::LoraMlp>> experts_;
  std::vector<std::unique_ptr<ops::LoraTable>> tables_;
};

}  // namespace winnow
