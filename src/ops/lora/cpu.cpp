#include <algorithm>
#include <cstring>

#include "ops/cpu_ops.h"
#include "ops/linear/cpu_linear.h"
#include "ops/lora/cpu_lora.h"
#include "ops/run_tasks.h"

namespace winnow::cpu {
namespace {

/// Rows that go through the operation together: bounds the scratch.
constexpr std::int64_t kChunkRows = 256;

/// Below this many copied or added values (some µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelValues = 64 * 1024;

/// One projection: what `base` (null: it has run) multiplies, and what the adapters add to it.
void add_rows(const Kernels& kernels, const ops::OpContext& context, const ops::LinearParams* base,
              const ops::LoraParams& params) {
  const std::span<const LoraGroup> groups = group_rows(
      *context.scratch, params.rows.adapter_of, params.num_rows, params.rows.adapters.size());
  LoraDeltas deltas(context, std::ssize(groups));
  for (const LoraGroup& group : groups) {
    const ops::LoraSite* const site = params.rows.adapters[static_cast<std::size_t>(group.adapter)];
    if (site == nullptr) continue;
    deltas.add(
        *site, group,
        {.x = params.x, .x_stride = params.x_stride, .y = params.y, .y_stride = params.y_stride});
  }
  auto* const products = context.scratch->take_array<ops::LinearParams>(deltas.num_products() + 1);
  deltas.write_products(products);
  auto count = static_cast<std::size_t>(deltas.num_products());
  if (base != nullptr) products[count++] = *base;
  multiply(kernels, context, {products, count});
  deltas.finish(kernels);
}

}  // namespace

std::span<const LoraGroup> group_rows(ops::Scratch& scratch, const std::int32_t* adapter_of,
                                      std::int64_t num_rows, std::size_t num_adapters) {
  auto* const counts = scratch.take_array<std::int64_t>(static_cast<std::int64_t>(num_adapters));
  auto* const groups = scratch.take_array<LoraGroup>(static_cast<std::int64_t>(num_adapters));
  auto* const rows = scratch.take_array<std::int32_t>(num_rows);
  std::fill_n(counts, num_adapters, 0);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (adapter_of[row] >= 0) ++counts[adapter_of[row]];
  }
  std::int64_t first = 0;
  std::size_t num_groups = 0;
  for (std::size_t adapter = 0; adapter < num_adapters; ++adapter) {
    const std::int64_t count = counts[adapter];
    counts[adapter] = first;  // from here on: where its next row goes
    if (count == 0) continue;
    groups[num_groups++] = {static_cast<std::int32_t>(adapter), rows + first, count};
    first += count;
  }
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (adapter_of[row] >= 0) {
      rows[counts[adapter_of[row]]++] = static_cast<std::int32_t>(row);
    }
  }
  return {groups, num_groups};
}

struct LoraDeltas::Task {
  const ops::LoraSite* site = nullptr;
  LoraGroup group;
  Operands operands;
  bool is_in_place = false;
  const float* x = nullptr;  // [rows][inputs]
  std::int64_t x_stride = 0;
  float* u = nullptr;      // [rows][rank]
  float* added = nullptr;  // part after part [rows][outputs]; null in place

  std::int64_t rank() const { return site->a->rows(); }
  std::int64_t outputs() const {
    std::int64_t sum = 0;
    for (const ops::LoraPart& part : site->parts) sum += part.b->rows();
    return sum;
  }
};

LoraDeltas::LoraDeltas(const ops::OpContext& context, std::int64_t max_groups)
    : context_(context), tasks_(context.scratch->take_array<Task>(max_groups)) {}

void LoraDeltas::add(const ops::LoraSite& site, const LoraGroup& group, const Operands& operands) {
  if (site.a == nullptr) return;
  ops::Scratch& scratch = *context_.scratch;
  const std::int64_t inputs = site.a->cols();
  Task& task = tasks_[num_tasks_++] = {.site = &site, .group = group, .operands = operands};
  const std::int64_t first = group.rows[0];
  task.is_in_place = group.rows[group.num_rows - 1] - first + 1 == group.num_rows;
  task.u = scratch.take_array<float>(group.num_rows * task.rank());
  if (task.is_in_place) {
    task.x = operands.x + first * operands.x_stride;
    task.x_stride = operands.x_stride;
    return;
  }
  auto* const gathered = scratch.take_array<float>(group.num_rows * inputs);
  const auto copy = [&](std::int64_t i, int) {
    std::memcpy(gathered + i * inputs, operands.x + group.rows[i] * operands.x_stride,
                static_cast<std::size_t>(inputs) * sizeof(float));
  };
  ops::run_tasks(context_, group.num_rows, group.num_rows * inputs >= kParallelValues, copy);
  task.x = gathered;
  task.x_stride = inputs;
  task.added = scratch.take_array<float>(group.num_rows * task.outputs());
}

void LoraDeltas::write_products(ops::LinearParams* products) const {
  for (std::int64_t i = 0; i < num_tasks_; ++i) {
    const Task& task = tasks_[i];
    products[i] = {.x = task.x,
                   .x_stride = task.x_stride,
                   .w = task.site->a,
                   .y = task.u,
                   .y_stride = task.rank(),
                   .num_rows = task.group.num_rows};
  }
}

void LoraDeltas::finish(const Kernels& kernels) {
  std::int64_t num_parts = 0;
  std::int64_t num_added = 0;
  for (std::int64_t i = 0; i < num_tasks_; ++i) {
    const Task& task = tasks_[i];
    num_parts += std::ssize(task.site->parts);
    if (!task.is_in_place) num_added += task.group.num_rows * task.outputs();
    for (std::int64_t row = 0; row < task.group.num_rows; ++row) {
      float* const u = task.u + row * task.rank();
      for (std::int64_t j = 0; j < task.rank(); ++j) u[j] *= task.site->scales[j];
    }
  }
  auto* const products = context_.scratch->take_array<ops::LinearParams>(num_parts);
  std::size_t num_products = 0;
  for (std::int64_t i = 0; i < num_tasks_; ++i) {
    const Task& task = tasks_[i];
    float* added = task.added;
    for (const ops::LoraPart& part : task.site->parts) {
      float* const in_place =
          task.operands.y + task.group.rows[0] * task.operands.y_stride + part.first_row;
      products[num_products++] = {
          .x = task.u + part.first_rank,
          .x_stride = task.rank(),
          .w = part.b,
          .y = task.is_in_place ? in_place : added,
          .y_stride = task.is_in_place ? task.operands.y_stride : part.b->rows(),
          .num_rows = task.group.num_rows,
          .accumulate = task.is_in_place};
      if (!task.is_in_place) added += task.group.num_rows * part.b->rows();
    }
  }
  multiply(kernels, context_, {products, num_products});
  if (num_added > 0) scatter(num_added);
}

/// y += added, for tasks whose rows do not lie side by side.
void LoraDeltas::scatter(std::int64_t num_values) const {
  const auto add_task = [&](std::int64_t i, int) {
    const Task& task = tasks_[i];
    if (task.is_in_place) return;
    const float* added = task.added;
    for (const ops::LoraPart& part : task.site->parts) {
      const std::int64_t width = part.b->rows();
      for (std::int64_t r = 0; r < task.group.num_rows; ++r, added += width) {
        float* const y =
            task.operands.y + task.group.rows[r] * task.operands.y_stride + part.first_row;
        for (std::int64_t n = 0; n < width; ++n) y[n] += added[n];
      }
    }
  };
  ops::run_tasks(context_, num_tasks_, num_values >= kParallelValues, add_task);
}

void multiply_with_lora(const Kernels& kernels, const ops::OpContext& context,
                        const ops::LinearParams& product,
                        const ops::LoraRows<ops::LoraSite>& lora) {
  add_rows(kernels, context, &product,
           {.rows = lora,
            .num_rows = product.num_rows,
            .x = product.x,
            .x_stride = product.x_stride,
            .y = product.y,
            .y_stride = product.y_stride});
}

void lora(const Kernels& kernels, const ops::OpContext& context, const ops::LoraParams& params) {
  for (std::int64_t first = 0; first < params.num_rows; first += kChunkRows) {
    ops::LoraParams chunk = params;
    chunk.rows = params.rows.from(first);
    chunk.num_rows = std::min(kChunkRows, params.num_rows - first);
    chunk.x += first * params.x_stride;
    chunk.y += first * params.y_stride;
    add_rows(kernels, context, nullptr, chunk);
    context.scratch->reset();
  }
}

}  // namespace winnow::cpu
