#include <algorithm>
#include <iterator>

#include "ops/cpu_ops.h"
#include "ops/linear/cpu_linear.h"
#include "ops/lora/cpu_lora.h"
#include "ops/mlp/cpu_mlp.h"
#include "ops/run_tasks.h"

namespace winnow::cpu {
namespace {

/// Tokens that go through a block together: bounds the scratch for wide blocks, and is far beyond
/// the dozen rows from which the weights' bytes no longer matter.
constexpr std::int64_t kChunkTokens = 256;

/// Below this many activations (some 10 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelValues = 16 * 1024;

struct Buffers {
  float* gate_up = nullptr;     // [num_tokens][2 · width]
  float* activation = nullptr;  // [num_tokens][width]
};

void activate(const Kernels& kernels, const ops::MlpParams& block, const Buffers& buffers,
              std::int64_t token) {
  const std::int64_t width = block.weights.down->cols();
  const float* const gate = buffers.gate_up + token * 2 * width;
  kernels.table.mlp->activate(gate, gate + width, width, block.constants.alpha,
                              block.constants.limit, block.constants.offset,
                              buffers.activation + token * width);
}

void activate_all(const Kernels& kernels, const ops::OpContext& context,
                  std::span<const ops::MlpParams> blocks, const Buffers* buffers) {
  std::int64_t num_values = 0;
  std::int64_t num_rows = 0;
  for (const ops::MlpParams& block : blocks) {
    num_rows += block.num_tokens;
    num_values += block.num_tokens * block.weights.down->cols();
  }
  const auto run = [&](std::int64_t row, int) {
    for (std::size_t i = 0; i < blocks.size(); row -= blocks[i++].num_tokens) {
      if (row < blocks[i].num_tokens) return activate(kernels, blocks[i], buffers[i], row);
    }
  };
  ops::run_tasks(context, num_rows, num_values >= kParallelValues, run);
}

/// The rows of some blocks by adapter, and their products beside those of the blocks.
class BlockAdapters {
 public:
  BlockAdapters(const ops::OpContext& context, std::span<const ops::MlpParams> blocks)
      : context_(context), blocks_(blocks) {
    const auto has_adapters = [](const ops::MlpParams& block) { return block.lora != nullptr; };
    if (std::ranges::none_of(blocks, has_adapters)) return;
    groups_ = context.scratch->take_array<std::span<const LoraGroup>>(std::ssize(blocks));
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      groups_[i] = {};
      if (blocks[i].lora == nullptr) continue;
      const ops::LoraRows<ops::LoraMlp>& lora = *blocks[i].lora;
      groups_[i] =
          group_rows(*context.scratch, lora.adapter_of, blocks[i].num_tokens, lora.adapters.size());
      num_groups_ += std::ssize(groups_[i]);
    }
  }

  std::int64_t num_groups() const { return num_groups_; }

  /// products[i] is block i's; there is room for num_groups() more behind them.
  void multiply_with(const Kernels& kernels, ops::LoraSite ops::LoraMlp::*site,
                     std::span<ops::LinearParams> products) const {
    if (num_groups_ == 0) return multiply(kernels, context_, products);
    LoraDeltas deltas(context_, num_groups_);
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      for (const LoraGroup& group : groups_[i]) {
        const ops::LoraMlp* const adapter =
            blocks_[i].lora->adapters[static_cast<std::size_t>(group.adapter)];
        if (adapter == nullptr) continue;
        deltas.add(adapter->*site, group,
                   {.x = products[i].x,
                    .x_stride = products[i].x_stride,
                    .y = products[i].y,
                    .y_stride = products[i].y_stride});
      }
    }
    deltas.write_products(products.data() + products.size());
    multiply(kernels, context_,
             {products.data(), products.size() + static_cast<std::size_t>(deltas.num_products())});
    deltas.finish(kernels);
  }

 private:
  const ops::OpContext& context_;
  std::span<const ops::MlpParams> blocks_;
  std::span<const LoraGroup>* groups_ = nullptr;  // by block
  std::int64_t num_groups_ = 0;
};

}  // namespace

void run_blocks(const Kernels& kernels, const ops::OpContext& context,
                std::span<const ops::MlpParams> blocks) {
  const std::int64_t count = std::ssize(blocks);
  auto* const buffers = context.scratch->take_array<Buffers>(count);
  const BlockAdapters adapters(context, blocks);
  auto* const products =
      context.scratch->take_array<ops::LinearParams>(count + adapters.num_groups());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ops::MlpParams& block = blocks[i];
    const std::int64_t width = block.weights.down->cols();
    buffers[i] = {.gate_up = context.scratch->take_array<float>(block.num_tokens * 2 * width),
                  .activation = context.scratch->take_array<float>(block.num_tokens * width)};
    products[i] = {.x = block.h,
                   .x_stride = block.weights.gate_up->cols(),
                   .w = block.weights.gate_up,
                   .y = buffers[i].gate_up,
                   .y_stride = 2 * width,
                   .num_rows = block.num_tokens};
  }
  adapters.multiply_with(kernels, &ops::LoraMlp::gate_up, {products, blocks.size()});
  activate_all(kernels, context, blocks, buffers);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ops::MlpParams& block = blocks[i];
    products[i] = {.x = buffers[i].activation,
                   .x_stride = block.weights.down->cols(),
                   .w = block.weights.down,
                   .y = block.y,
                   .y_stride = block.weights.down->rows(),
                   .num_rows = block.num_tokens,
                   .accumulate = block.accumulate};
  }
  adapters.multiply_with(kernels, &ops::LoraMlp::down, {products, blocks.size()});
}

void mlp(const Kernels& kernels, const ops::OpContext& context, const ops::MlpParams& params) {
  const std::int64_t hidden = params.weights.down->rows();
  for (std::int64_t first = 0; first < params.num_tokens; first += kChunkTokens) {
    ops::MlpParams chunk = params;
    chunk.h = params.h + first * hidden;
    chunk.y = params.y + first * hidden;
    chunk.num_tokens = std::min(kChunkTokens, params.num_tokens - first);
    ops::LoraRows<ops::LoraMlp> lora;
    if (params.lora != nullptr) {
      lora = params.lora->from(first);
      chunk.lora = &lora;
    }
    run_blocks(kernels, context, std::span(&chunk, 1));
    context.scratch->reset();
  }
}

}  // namespace winnow::cpu
