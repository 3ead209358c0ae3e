// Router, experts and shared expert. Tokens are grouped by expert, experts run in waves: as many as
// fit a bounded scratch, all under the same barriers. A token's sum grows expert by expert in
// ascending id whatever the waves are, so grouping cannot change a bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "ops/cpu_ops.h"
#include "ops/linear/cpu_linear.h"
#include "ops/mlp/cpu_mlp.h"
#include "ops/moe/moe.h"
#include "ops/run_tasks.h"

namespace winnow::cpu {
namespace {

constexpr std::int64_t kChunkTokens = 1024;  // routed together; bounds scratch
constexpr std::int64_t kWavePairs = 512;     // (token, expert) pairs of a wave, unless one has more

/// Below this many output values (some µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelValues = 32 * 1024;

/// Tokens [first, first + count) of a call, and what is known of them so far.
class Chunk {
 public:
  Chunk(const Kernels& kernels, const ops::OpContext& context, const ops::MoeParams& params,
        std::int64_t first, std::int64_t count)
      : kernels_(kernels),
        context_(context),
        scratch_(*context.scratch),
        params_(params),
        first_(first),
        count_(count),
        hidden_(params.router->cols()),
        num_experts_(static_cast<std::int32_t>(params.router->rows())),
        h_(params.h + first * hidden_) {}

  void run() {
    route();
    sort_pairs();
    routed_ = scratch_.take_array<float>(count_ * hidden_);
    std::memset(routed_, 0, static_cast<std::size_t>(count_ * hidden_) * sizeof(float));
    if (params_.shared.gate_up != nullptr) shared_ = scratch_.take_array<float>(count_ * hidden_);
    gathered_ = scratch_.take_array<float>(largest_wave() * hidden_);
    outputs_ = scratch_.take_array<float>(largest_wave() * hidden_);
    bool with_shared = shared_ != nullptr;
    std::int32_t expert = 0;
    while (expert < num_experts_ || with_shared) {
      const ops::Scratch::Mark mark = scratch_.mark();
      expert = run_wave(expert, with_shared);
      scratch_.rewind(mark);
      with_shared = false;
    }
    for_each_token([&](std::int64_t t) {
      kernels_.table.mlp->combine(params_.routed_scale, routed_ + t * hidden_,
                                  shared_ == nullptr ? nullptr : shared_ + t * hidden_, hidden_,
                                  params_.y + (first_ + t) * hidden_);
    });
  }

 private:
  template <typename F>
  void for_each_token(const F& f) const {
    ops::run_tasks(context_, count_, count_ * hidden_ >= kParallelValues,
                   [&](std::int64_t t, int) { f(t); });
  }

  void route() {
    auto* const logits = scratch_.take_array<float>(count_ * num_experts_);
    chosen_ = scratch_.take_array<std::int32_t>(count_ * params_.top_k);
    weights_ = scratch_.take_array<float>(count_ * params_.top_k);
    const ops::LinearParams product{.x = h_,
                                    .x_stride = hidden_,
                                    .w = params_.router,
                                    .y = logits,
                                    .y_stride = num_experts_,
                                    .num_rows = count_};
    multiply(kernels_, context_, std::span(&product, 1));
    for_each_token([&](std::int64_t t) {
      float* const scores = logits + t * num_experts_;
      kernels_.table.mlp->sigmoid(scores, num_experts_);
      choose(scores, chosen_ + t * params_.top_k, weights_ + t * params_.top_k);
    });
    const std::int64_t at = first_ * params_.top_k;
    const std::int64_t num_pairs = count_ * params_.top_k;
    if (params_.chosen_experts != nullptr) {
      std::copy_n(chosen_, num_pairs, params_.chosen_experts + at);
    }
    if (params_.chosen_weights != nullptr) {
      std::copy_n(weights_, num_pairs, params_.chosen_weights + at);
    }
  }

  /// The top_k experts by sigmoid + bias (NaN lowest, ties: lower id), ascending, and their
  /// weights.
  void choose(const float* scores, std::int32_t* chosen, float* weights) const {
    const auto rank = [&](std::int32_t e) {
      const float biased = scores[e] + params_.router_bias[e];
      return std::isnan(biased) ? -std::numeric_limits<float>::infinity() : biased;
    };
    std::int32_t size = 0;
    for (std::int32_t e = 0; e < num_experts_; ++e) {
      const float score = rank(e);
      if (size == params_.top_k && !(score > rank(chosen[size - 1]))) continue;
      std::int32_t at = size < params_.top_k ? size++ : size - 1;
      for (; at > 0 && score > rank(chosen[at - 1]); --at) chosen[at] = chosen[at - 1];
      chosen[at] = e;
    }
    std::sort(chosen, chosen + size);
    float sum = 0.0F;
    for (std::int32_t slot = 0; slot < size; ++slot) sum += scores[chosen[slot]];
    for (std::int32_t slot = 0; slot < size; ++slot) weights[slot] = scores[chosen[slot]] / sum;
  }

  /// Pairs by expert: the tokens of expert e are token_of_[begin_[e]] …, in ascending order.
  void sort_pairs() {
    begin_ = scratch_.take_array<std::int64_t>(num_experts_ + 1);
    token_of_ = scratch_.take_array<std::int32_t>(count_ * params_.top_k);
    pair_of_ = scratch_.take_array<std::int64_t>(count_ * params_.top_k);
    std::fill_n(begin_, num_experts_ + 1, 0);
    const std::int64_t num_pairs = count_ * params_.top_k;
    for (std::int64_t i = 0; i < num_pairs; ++i) ++begin_[chosen_[i] + 1];
    for (std::int32_t e = 0; e < num_experts_; ++e) begin_[e + 1] += begin_[e];
    auto* const next = scratch_.take_array<std::int64_t>(num_experts_);
    std::copy_n(begin_, num_experts_, next);
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      pair_of_[i] = next[chosen_[i]]++;
      token_of_[pair_of_[i]] = static_cast<std::int32_t>(i / params_.top_k);
    }
    if (params_.lora == nullptr) return;
    adapter_of_pair_ = scratch_.take_array<std::int32_t>(num_pairs);
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      adapter_of_pair_[i] = params_.lora->adapter_of[first_ + token_of_[i]];
    }
  }

  std::int64_t tokens_of(std::int32_t expert) const { return begin_[expert + 1] - begin_[expert]; }

  /// One past the last expert of the wave that starts with `first`.
  std::int32_t end_of_wave(std::int32_t first) const {
    std::int32_t end = first;
    while (end < num_experts_ && (end == first || begin_[end + 1] - begin_[first] <= kWavePairs)) {
      ++end;
    }
    return end;
  }

  std::int64_t largest_wave() const {
    std::int64_t largest = 1;
    for (std::int32_t e = 0; e < num_experts_;) {
      const std::int32_t end = end_of_wave(e);
      largest = std::max(largest, begin_[end] - begin_[e]);
      e = end;
    }
    return largest;
  }

  /// Experts [first, result) and, if asked, the shared one.
  std::int32_t run_wave(std::int32_t first, bool with_shared) {
    const std::int32_t end = end_of_wave(first);
    const std::int64_t first_pair = begin_[first];
    const std::int64_t num_pairs = begin_[end] - first_pair;
    if (num_pairs == 0 && !with_shared) return end;
    gather(first_pair, num_pairs);

    auto* const blocks = scratch_.take_array<ops::MlpParams>(end - first + 1);
    std::size_t num_blocks = 0;
    for (std::int32_t e = first; e < end; ++e) {
      if (tokens_of(e) == 0) continue;
      const std::int64_t row = begin_[e] - first_pair;
      blocks[num_blocks++] = {.h = input_of(row),
                              .num_tokens = tokens_of(e),
                              .weights = params_.experts[static_cast<std::size_t>(e)],
                              .constants = params_.constants,
                              .y = outputs_ + row * hidden_,
                              .accumulate = false,
                              .lora = lora_of_expert(e)};
    }
    if (with_shared) {
      blocks[num_blocks++] = {.h = h_,
                              .num_tokens = count_,
                              .weights = params_.shared,
                              .constants = params_.constants,
                              .y = shared_,
                              .accumulate = false,
                              .lora = lora_of_shared()};
    }
    run_blocks(kernels_, context_, {blocks, num_blocks});
    for_each_token([&](std::int64_t t) { accumulate(t, first_pair, num_pairs); });
    return end;
  }

  /// Null where no adapter of the call adds anything.
  const ops::LoraRows<ops::LoraMlp>* lora_of_expert(std::int32_t e) const {
    if (params_.lora == nullptr) return nullptr;
    return make_lora(adapter_of_pair_ + begin_[e], [e](const ops::LoraMoe& adapter) {
      return adapter.experts.empty() ? nullptr : &adapter.experts[static_cast<std::size_t>(e)];
    });
  }

  const ops::LoraRows<ops::LoraMlp>* lora_of_shared() const {
    if (params_.lora == nullptr) return nullptr;
    return make_lora(params_.lora->adapter_of + first_,
                     [](const ops::LoraMoe& adapter) { return &adapter.shared; });
  }

  template <typename Block>
  const ops::LoraRows<ops::LoraMlp>* make_lora(const std::int32_t* adapter_of,
                                               const Block& block_of) const {
    const auto& adapters = params_.lora->adapters;
    auto* const blocks = scratch_.take_array<const ops::LoraMlp*>(std::ssize(adapters));
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      blocks[i] = adapters[i] == nullptr ? nullptr : block_of(*adapters[i]);
    }
    auto* const rows = scratch_.take_array<ops::LoraRows<ops::LoraMlp>>(1);
    *rows = {.adapter_of = adapter_of, .adapters = {blocks, adapters.size()}};
    return rows;
  }

  /// A single token needs no copies: every expert reads the same row.
  const float* input_of(std::int64_t row) const {
    return count_ == 1 ? h_ : gathered_ + row * hidden_;
  }

  void gather(std::int64_t first_pair, std::int64_t num_pairs) const {
    if (count_ == 1) return;
    const auto copy = [&](std::int64_t i, int) {
      std::memcpy(gathered_ + i * hidden_, h_ + token_of_[first_pair + i] * hidden_,
                  static_cast<std::size_t>(hidden_) * sizeof(float));
    };
    ops::run_tasks(context_, num_pairs, num_pairs * hidden_ >= kParallelValues, copy);
  }

  /// Adds the wave's outputs to one token's sum; its choices stand in ascending expert order.
  void accumulate(std::int64_t t, std::int64_t first_pair, std::int64_t num_pairs) const {
    for (std::int64_t slot = 0; slot < params_.top_k; ++slot) {
      const std::int64_t row = pair_of_[t * params_.top_k + slot] - first_pair;
      if (row < 0 || row >= num_pairs) continue;
      const float* const output = outputs_ + row * hidden_;
      kernels_.table.mlp->accumulate(weights_[t * params_.top_k + slot], output, hidden_,
                                     routed_ + t * hidden_);
    }
  }

  const Kernels& kernels_;
  const ops::OpContext& context_;
  ops::Scratch& scratch_;
  const ops::MoeParams& params_;
  std::int64_t first_;
  std::int64_t count_;
  std::int64_t hidden_;
  std::int32_t num_experts_;
  const float* h_;
  std::int32_t* chosen_ = nullptr;           // [count][top_k], ascending
  float* weights_ = nullptr;                 // [count][top_k]
  std::int64_t* begin_ = nullptr;            // [num_experts + 1]
  std::int32_t* token_of_ = nullptr;         // [count · top_k], by expert
  std::int64_t* pair_of_ = nullptr;          // [count][top_k] → place in token_of_
  std::int32_t* adapter_of_pair_ = nullptr;  // by place in token_of_, with adapters only
  float* routed_ = nullptr;                  // [count][hidden]
  float* shared_ = nullptr;                  // [count][hidden], null without a shared expert
  float* gathered_ = nullptr;                // [pairs of a wave][hidden]
  float* outputs_ = nullptr;                 // [pairs of a wave][hidden]
};

}  // namespace

void moe(const Kernels& kernels, const ops::OpContext& context, const ops::MoeParams& params) {
  for (std::int64_t first = 0; first < params.num_tokens; first += kChunkTokens) {
    Chunk(kernels, context, params, first, std::min(kChunkTokens, params.num_tokens - first)).run();
    context.scratch->reset();
  }
}

}  // namespace winnow::cpu
