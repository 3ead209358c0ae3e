// Adapters beside the products of an operation on the CPU: their A · x run under the same barrier
// as the base's W · x, their B · u under one of their own. Rows of one adapter are multiplied
// together; where they lie side by side in x and y, they are read and written in place.
#pragma once

#include <cstdint>
#include <span>

#include "ops/cpu_kernels.h"
#include "ops/lora/lora.h"
#include "ops/op_context.h"

namespace winnow::cpu {

/// Rows that have one adapter.
struct LoraGroup {
  std::int32_t adapter = 0;
  const std::int32_t* rows = nullptr;  // ascending
  std::int64_t num_rows = 0;
};

/// Rows [0, num_rows) by adapter, without those that have none. In scratch.
std::span<const LoraGroup> group_rows(ops::Scratch& scratch, const std::int32_t* adapter_of,
                                      std::int64_t num_rows, std::size_t num_adapters);

/// `product`, and what adapters add to its rows. Takes scratch and does not reset it.
void multiply_with_lora(const Kernels& kernels, const ops::OpContext& context,
                        const ops::LinearParams& product, const ops::LoraRows<ops::LoraSite>& lora);

/// One round of an operation. Takes scratch and does not reset it.
class LoraDeltas {
 public:
  /// For up to `max_groups` calls of add().
  LoraDeltas(const ops::OpContext& context, std::int64_t max_groups);

  /// Where a projection reads and writes its rows.
  struct Operands {
    const float* x = nullptr;
    std::int64_t x_stride = 0;
    float* y = nullptr;
    std::int64_t y_stride = 0;
  };
  void add(const ops::LoraSite& site, const LoraGroup& group, const Operands& operands);

  std::int64_t num_products() const { return num_tasks_; }
  /// The num_products() products A · x: to be run, by multiply(), before finish().
  void write_products(ops::LinearParams* products) const;
  /// Once y holds what the projection wrote.
  void finish(const Kernels& kernels);

 private:
  struct Task;

  void scatter(std::int64_t num_values) const;

  const ops::OpContext& context_;
  Task* tasks_;
  std::int64_t num_tasks_ = 0;
};

}  // namespace winnow::cpu
