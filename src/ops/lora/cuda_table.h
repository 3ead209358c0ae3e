// Adapters' sites as kernels find them: which adapter a row has, and of an adapter on experts which
// entry, is only known on the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/linear/cuda_matrix.h"
#include "ops/lora/lora.h"

namespace winnow::cuda {

/// ops::LoraPart with its one matrix.
struct DeviceLoraPart {
  MatrixPart b;
  std::int64_t first_row = 0;  // of the projection
  std::int32_t first_rank = 0;
  std::int32_t rank = 0;  // columns of b
};

/// ops::LoraSite; all pointers are the device's.
struct DeviceLoraSite {
  const MatrixPart* a = nullptr;  // [num_a]; first_row counts values of u
  const DeviceLoraPart* parts = nullptr;
  const float* scales = nullptr;
  std::int32_t num_a = 0;  // 0: adds nothing
  std::int32_t num_parts = 0;
  std::int32_t rank = 0;  // of all parts together
};

/// One adapter at one projection, or at the same projection of every expert.
class CudaLoraTable final : public ops::LoraTable {
 public:
  /// The largest of any entry; a launch is sized by them.
  struct Extents {
    std::int64_t inputs = 0;   // of every entry
    std::int32_t rank = 0;     // values of u
    std::int32_t a_tiles = 0;  // of all parts of `a`
    std::int32_t b_tiles = 0;  // of all parts' b
  };

  CudaLoraTable(ops::Array<std::byte> block, const Extents& extents)
      : block_(std::move(block)), extents_(extents) {}

  std::int64_t num_bytes() const override { return block_.num_bytes(); }
  /// The sites in their order, at the start of the block.
  const DeviceLoraSite* device() const {
    return reinterpret_cast<const DeviceLoraSite*>(block_.data());
  }
  const Extents& extents() const { return extents_; }

 private:
  ops::Array<std::byte> block_;
  Extents extents_;
};

/// The adapters of a call at one projection.
class LoraTables {
 public:
  LoraTables() = default;
  /// `table_of(adapter)`: an ops::LoraTable, null: it adds nothing there. `rows` null: no adapters.
  template <typename Adapter, typename TableOf>
  LoraTables(const ops::LoraRows<Adapter>* rows, const TableOf& table_of) {
    if (rows == nullptr) return;
    adapter_of_ = rows->adapter_of;
    for (const Adapter* const adapter : rows->adapters) {
      add(adapter == nullptr ? nullptr : table_of(*adapter));
    }
  }

  std::span<const CudaLoraTable* const> of_adapter() const { return of_adapter_; }
  const std::int32_t* adapter_of() const { return adapter_of_; }  // device, [tokens]
  /// Values of u that a row needs room for; 0: nothing is added here.
  std::int64_t rank() const { return rank_; }

 private:
  void add(const ops::LoraTable* table) {
    of_adapter_.push_back(static_cast<const CudaLoraTable*>(table));
    if (table != nullptr) {
      rank_ = std::max<std::int64_t>(rank_, of_adapter_.back()->extents().rank);
    }
  }

  std::vector<const CudaLoraTable*> of_adapter_;
  const std::int32_t* adapter_of_ = nullptr;
  std::int64_t rank_ = 0;
};

}  // namespace winnow::cuda
