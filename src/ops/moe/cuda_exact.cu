// moe() in its written order, without the host knowing who goes where: the tokens' choices are
// sorted by expert on the device, into items of a few tokens of one expert, and the two products of
// the experts run over a number of items that the token count bounds. Where not all tokens are
// wanted, the others make no pairs.
#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/fast_exp.h"
#include "ops/linear/cuda_exact.h"
#include "ops/mlp/cuda_exact.h"
#include "ops/moe/cuda_adapted.h"
#include "ops/moe/cuda_experts.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 256;
constexpr int kSortThreads = 1024;
constexpr unsigned kWholeWarp = 0xFFFFFFFFU;
constexpr std::int64_t kFloat = static_cast<std::int64_t>(sizeof(float));

/// Device arrays for `chunk` tokens at a time. A pair is one choice of one token.
struct Workspace {
  float* logits = nullptr;            // [chunk][num_experts]; becomes sigmoid values
  std::int32_t* chosen = nullptr;     // [chunk][top_k], ascending
  float* weights = nullptr;           // [chunk][top_k]
  std::int32_t* sorted_at = nullptr;  // [chunk][top_k]: where a pair stands in the sorted list
  std::int32_t* token_of = nullptr;   // [pairs sorted by expert]; -1 behind the last
  std::int32_t* expert_of = nullptr;  // [the same]; null: nobody asks
  ExpertRows* items = nullptr;
  float* gate_up = nullptr;     // [pairs][2 · width]
  float* activation = nullptr;  // [pairs][width]
  float* expert_out = nullptr;  // [pairs][hidden]
  float* shared = nullptr;      // [chunk][hidden]
  float* shared_mlp = nullptr;  // [chunk][3 · shared width]
  float* u = nullptr;           // [pairs or chunk][rank] of adapters
  WantedList list = {};         // where not all are wanted: shared and shared_mlp are by place
};

/// One warp a token: the top_k experts by sigmoid + bias, ascending, and their weights.
__global__ void exact_choose_experts(float* logits, const float* bias, std::int32_t num_tokens,
                                     std::int32_t num_experts, std::int32_t top_k,
                                     std::int32_t* chosen, float* weights) {
  const auto t = static_cast<std::int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  if (t >= num_tokens) return;
  float* const scores = logits + std::int64_t{t} * num_experts;
  std::int32_t* const ids = chosen + std::int64_t{t} * top_k;
  for (std::int32_t e = lane; e < num_experts; e += 32) scores[e] = ops::fast_sigmoid(scores[e]);
  __syncwarp();
  // The order is total (ties go to the lower id), so the next best is the best of those that come
  // after the last one chosen.
  const float lowest = -INFINITY;
  float last_rank = INFINITY;
  std::int32_t last = -1;
  for (std::int32_t slot = 0; slot < top_k; ++slot) {
    float best_rank = lowest;
    std::int32_t best = num_experts;
    for (std::int32_t e = lane; e < num_experts; e += 32) {
      const float biased = scores[e] + bias[e];
      const float rank = biased != biased ? lowest : biased;
      const bool is_left = rank < last_rank || (rank == last_rank && e > last);
      if (!is_left) continue;
      if (best == num_experts || rank > best_rank) {
        best_rank = rank;
        best = e;
      }
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other_rank = __shfl_xor_sync(kWholeWarp, best_rank, step);
      const std::int32_t other = __shfl_xor_sync(kWholeWarp, best, step);
      const bool wins = other_rank > best_rank || (other_rank == best_rank && other < best);
      if (wins) {
        best_rank = other_rank;
        best = other;
      }
    }
    last_rank = best_rank;
    last = best;
    if (lane == 0) ids[slot] = best;
  }
  if (lane != 0) return;
  for (std::int32_t i = 1; i < top_k; ++i) {
    const std::int32_t id = ids[i];
    std::int32_t at = i;
    for (; at > 0 && ids[at - 1] > id; --at) ids[at] = ids[at - 1];
    ids[at] = id;
  }
  float* const out = weights + std::int64_t{t} * top_k;
  float sum = 0.0F;
  for (std::int32_t slot = 0; slot < top_k; ++slot) sum += scores[ids[slot]];
  for (std::int32_t slot = 0; slot < top_k; ++slot) out[slot] = scores[ids[slot]] / sum;
}

/// One block: pairs sorted by expert, and the items. Shared memory: 2 · (num_experts + 1) counts.
/// Where a pair lands within its expert's range is of no consequence, so an atomic decides.
/// `wanted` is by token; null: all.
__global__ void __launch_bounds__(kSortThreads)
    exact_sort_pairs(Workspace work, std::int32_t num_tokens, std::int32_t num_experts,
                     std::int32_t top_k, std::int32_t item_rows, std::int32_t num_items,
                     const std::int32_t* wanted) {
  extern __shared__ std::int32_t counts[];  // per expert
  std::int32_t* const next = counts + num_experts + 1;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t num_pairs = num_tokens * top_k;
  for (std::int32_t e = thread; e < num_experts; e += kSortThreads) counts[e] = 0;
  __syncthreads();
  for (std::int32_t i = thread; i < num_pairs; i += kSortThreads) {
    if (wanted != nullptr) work.token_of[i] = -1;
    if (wanted != nullptr && wanted[i / top_k] == 0) continue;
    atomicAdd(&counts[work.chosen[i]], 1);
  }
  __syncthreads();
  if (thread == 0) {
    std::int32_t begin = 0;
    std::int32_t item = 0;
    for (std::int32_t e = 0; e < num_experts; ++e) {
      next[e] = begin;
      for (std::int32_t first = 0; first < counts[e]; first += item_rows) {
        const std::int32_t left = counts[e] - first;
        work.items[item++] = {e, begin + first, left < item_rows ? left : item_rows};
      }
      begin += counts[e];
    }
    for (; item < num_items; ++item) work.items[item] = {};
  }
  __syncthreads();
  for (std::int32_t i = thread; i < num_pairs; i += kSortThreads) {
    if (wanted != nullptr && wanted[i / top_k] == 0) continue;
    const std::int32_t at = atomicAdd(&next[work.chosen[i]], 1);
    work.sorted_at[i] = at;
    work.token_of[at] = i / top_k;
    if (work.expert_of != nullptr) work.expert_of[at] = work.chosen[i];
  }
}

/// y += routed_scale · Σ_e w_e · expert_e + shared, e ascending.
__global__ void exact_combine(Workspace work, std::int64_t hidden, std::int32_t top_k,
                              bool has_shared, float routed_scale, const std::int32_t* wanted,
                              float* y) {
  const std::int64_t t = blockIdx.x;
  if (wanted != nullptr && wanted[t] == 0) return;
  const std::int64_t i = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= hidden) return;
  float routed = 0.0F;
  for (std::int32_t slot = 0; slot < top_k; ++slot) {
    const std::int64_t pair = work.sorted_at[t * top_k + slot];
    routed = fmaf(work.weights[t * top_k + slot], work.expert_out[pair * hidden + i], routed);
  }
  const std::int64_t place = wanted != nullptr ? work.list.place_of[t] : t;
  const float shared = has_shared ? work.shared[place * hidden + i] : 0.0F;
  float* const out = y + t * hidden + i;
  *out += fmaf(routed_scale, routed, shared);
}

/// One layer's sizes and what they need of scratch. `wanted` is by token; null: all.
class MoeRun {
 public:
  MoeRun(const ops::OpContext& context, const ops::MoeParams& params, const MoeAdapters& adapters,
         const std::int32_t* wanted)
      : context_(context),
        params_(params),
        adapters_(adapters),
        wanted_(wanted),
        experts_(*static_cast<const CudaExperts*>(params.table)),
        hidden_(params.router->cols()),
        num_experts_(static_cast<std::int32_t>(params.router->rows())) {
    DeviceScratch& scratch = context.cuda->scratch();
    // Each array is rounded up to 256 bytes, and experts' last items are padding.
    const std::int64_t spare = 20 * 256 + 2 * num_experts_ * std::int64_t{sizeof(ExpertRows)};
    chunk_ = std::clamp<std::int64_t>((scratch.available_bytes() - spare) / token_bytes(), 1,
                                      params.num_tokens);
    // Experts see few tokens each on average: then the kernel for few wastes nothing.
    item_rows_ = chunk_ * params.top_k > 8 * num_experts_ ? kTileTokens : kFewRows;
    take(scratch);
  }

  void run() const {
    for (std::int64_t first = 0; first < params_.num_tokens; first += chunk_) {
      run_chunk(first, static_cast<std::int32_t>(std::min(chunk_, params_.num_tokens - first)));
    }
  }

 private:
  std::int64_t token_bytes() const {
    const std::int64_t of_pair =
        (3 * experts_.width() + hidden_ + 3) * kFloat + std::int64_t{sizeof(ExpertRows)};
    const std::int64_t of_token =
        (num_experts_ + 2 * params_.top_k + hidden_ + 3 * experts_.shared_width()) * kFloat;
    const std::int64_t of_adapters =
        (params_.top_k * (adapters_.experts.rank() + 1) + adapters_.shared.rank()) * kFloat;
    const std::int64_t of_wanted = 2 * kFloat + std::int64_t{sizeof(ExpertRows)};
    return params_.top_k * of_pair + of_token + of_adapters + of_wanted;
  }

  /// Never more items than pairs; and full ones, plus one that is not full of each expert.
  std::int32_t num_items(std::int64_t num_tokens) const {
    const std::int64_t pairs = num_tokens * params_.top_k;
    return static_cast<std::int32_t>(
        std::min(pairs, pairs / item_rows_ + std::min<std::int64_t>(pairs, num_experts_)));
  }

  std::int32_t num_list_items(std::int64_t num_tokens) const {
    return static_cast<std::int32_t>((num_tokens + item_rows_ - 1) / item_rows_);
  }

  const std::int32_t* wanted_from(std::int64_t first) const {
    return wanted_ == nullptr ? nullptr : wanted_ + first;
  }

  void take(DeviceScratch& scratch) {
    const std::int64_t pairs = chunk_ * params_.top_k;
    work_ = {.logits = scratch.take_array<float>(chunk_ * num_experts_),
             .chosen = scratch.take_array<std::int32_t>(pairs),
             .weights = scratch.take_array<float>(pairs),
             .sorted_at = scratch.take_array<std::int32_t>(pairs),
             .token_of = scratch.take_array<std::int32_t>(pairs),
             .items = scratch.take_array<ExpertRows>(num_items(chunk_)),
             .gate_up = scratch.take_array<float>(pairs * 2 * experts_.width()),
             .activation = scratch.take_array<float>(pairs * experts_.width()),
             .expert_out = scratch.take_array<float>(pairs * hidden_),
             .shared = scratch.take_array<float>(chunk_ * hidden_),
             .shared_mlp = scratch.take_array<float>(
                 chunk_ * mlp_token_floats(experts_.shared_width(), adapters_.shared))};
    if (adapters_.experts.rank() > 0) {
      work_.expert_of = scratch.take_array<std::int32_t>(pairs);
      work_.u = scratch.take_array<float>(pairs * adapters_.experts.rank());
    }
    if (wanted_ == nullptr) return;
    work_.list = {.tokens = scratch.take_array<std::int32_t>(chunk_),
                  .place_of = scratch.take_array<std::int32_t>(chunk_),
                  .items = scratch.take_array<ExpertRows>(num_list_items(chunk_))};
  }

  void run_chunk(std::int64_t first, std::int32_t count) const {
    CUstream_st* const stream = context_.cuda->stream();
    const float* const h = params_.h + first * hidden_;
    choose(h, count);
    const std::size_t counts =
        2 * (static_cast<std::size_t>(num_experts_) + 1) * sizeof(std::int32_t);
    exact_sort_pairs<<<1, kSortThreads, counts, stream>>>(work_, count, num_experts_, params_.top_k,
                                                          item_rows_, num_items(count),
                                                          wanted_from(first));
    check_launch("sorting choices");
    run_experts(h, first, count);
    if (experts_.has_shared()) run_shared(h, first, count);
    const dim3 blocks(static_cast<unsigned>(count),
                      static_cast<unsigned>((hidden_ + kThreads - 1) / kThreads));
    exact_combine<<<blocks, kThreads, 0, stream>>>(work_, hidden_, params_.top_k,
                                                   experts_.has_shared(), params_.routed_scale,
                                                   wanted_from(first), params_.y + first * hidden_);
    check_launch("combining experts");
    report(first, count);
  }

  void choose(const float* h, std::int32_t count) const {
    linear(context_, {.x = h,
                      .x_stride = hidden_,
                      .w = params_.router,
                      .y = work_.logits,
                      .y_stride = num_experts_,
                      .num_rows = count});
    constexpr int kTokensOfBlock = kThreads / 32;
    exact_choose_experts<<<static_cast<unsigned>((count + kTokensOfBlock - 1) / kTokensOfBlock),
                           kThreads, 0, context_.cuda->stream()>>>(
        work_.logits, params_.router_bias, count, num_experts_, params_.top_k, work_.chosen,
        work_.weights);
    check_launch("choosing experts");
  }

  void run_experts(const float* h, std::int64_t first, std::int32_t count) const {
    run_grouped(h, first,
                {.experts = experts_.device(),
                 .width = experts_.width(),
                 .items = work_.items,
                 .num_items = num_items(count),
                 .num_rows = std::int64_t{count} * params_.top_k,
                 .token_of = work_.token_of,
                 .expert_of = work_.expert_of,
                 .gate_up = work_.gate_up,
                 .activation = work_.activation,
                 .out = work_.expert_out,
                 .u = work_.u},
                adapters_.experts);
  }

  void run_shared(const float* h, std::int64_t first, std::int32_t count) const {
    if (wanted_ != nullptr) return run_shared_of_wanted(h, first, count);
    MlpAdapters adapters = adapters_.shared;
    adapters.first_token = first;
    mlp_in(context_,
           {.h = h,
            .num_tokens = count,
            .weights = params_.shared,
            .constants = params_.constants,
            .y = work_.shared},
           adapters, work_.shared_mlp, chunk_);
  }

  /// mlp_in() for the list, by the kernels that take lists of the device's.
  void run_shared_of_wanted(const float* h, std::int64_t first, std::int32_t count) const {
    const std::int64_t width = experts_.shared_width();
    const WantedList& list = work_.list;
    list_wanted(context_.cuda->stream(), wanted_from(first), count, item_rows_,
                num_list_items(count), list);
    run_grouped(h, first,
                {.experts = experts_.device() + num_experts_,
                 .width = width,
                 .items = list.items,
                 .num_items = num_list_items(count),
                 .num_rows = count,
                 .token_of = list.tokens,
                 .gate_up = work_.shared_mlp,
                 .activation = work_.shared_mlp + chunk_ * 2 * width,
                 .out = work_.shared,
                 .u = work_.shared_mlp + chunk_ * 3 * width},
                adapters_.shared);
  }

  /// Rows of a list that only the device knows.
  struct Grouped {
    const DeviceMlp* experts = nullptr;
    std::int64_t width = 0;
    const ExpertRows* items = nullptr;
    std::int32_t num_items = 0;
    std::int64_t num_rows = 0;  // a bound
    const std::int32_t* token_of = nullptr;
    const std::int32_t* expert_of = nullptr;  // null: entry 0 of adapters' tables
    float* gate_up = nullptr;
    float* activation = nullptr;
    float* out = nullptr;
    float* u = nullptr;
  };

  void run_grouped(const float* h, std::int64_t first, const Grouped& list,
                   const MlpAdapters& adapters) const {
    CUstream_st* const stream = context_.cuda->stream();
    const std::int64_t width = list.width;
    GroupedLinear work{.experts = list.experts,
                       .is_down = false,
                       .rows = 2 * width,
                       .cols = hidden_,
                       .items = list.items,
                       .num_items = list.num_items,
                       .item_rows = item_rows_,
                       .x = h,
                       .x_stride = hidden_,
                       .x_rows = list.token_of,
                       .y = list.gate_up,
                       .y_stride = 2 * width};
    LoraOperands added{.x = h,
                       .x_stride = hidden_,
                       .x_rows = list.token_of,
                       .y = list.gate_up,
                       .y_stride = 2 * width,
                       .num_rows = list.num_rows,
                       .token_of = list.token_of,
                       .expert_of = list.expert_of};
    grouped_linear(stream, work);
    add_lora(stream, adapters.gate_up, first, added, list.u);
    activate(stream, list.gate_up, list.num_rows, width, params_.constants, list.activation);
    work.is_down = true;
    work.rows = hidden_;
    work.cols = width;
    work.x = added.x = list.activation;
    work.x_stride = added.x_stride = width;
    work.x_rows = added.x_rows = nullptr;
    work.y = added.y = list.out;
    work.y_stride = added.y_stride = hidden_;
    grouped_linear(stream, work);
    add_lora(stream, adapters.down, first, added, list.u);
  }

  void report(std::int64_t first, std::int32_t count) const {
    const std::int64_t at = first * params_.top_k;
    const auto bytes =
        static_cast<std::size_t>(count) * static_cast<std::size_t>(params_.top_k) * sizeof(float);
    const auto copy = [&](auto* to, const auto* from) {
      if (wanted_ != nullptr) {
        return copy_wanted(context_.cuda->stream(), wanted_from(first), count, params_.top_k, from,
                           to);
      }
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context_.cuda->stream()),
            "copying the chosen experts");
    };
    if (params_.chosen_experts != nullptr) copy(params_.chosen_experts + at, work_.chosen);
    if (params_.chosen_weights != nullptr) copy(params_.chosen_weights + at, work_.weights);
  }

  const ops::OpContext& context_;
  const ops::MoeParams& params_;
  const MoeAdapters& adapters_;
  const std::int32_t* wanted_;
  const CudaExperts& experts_;
  std::int64_t hidden_;
  std::int32_t num_experts_;
  std::int64_t chunk_ = 0;
  std::int32_t item_rows_ = kFewRows;
  Workspace work_;
};

}  // namespace

void moe(const ops::OpContext& context, const ops::MoeParams& params) {
  if (params.num_tokens == 0) return;
  const MoeAdapters adapters(params.lora);
  MoeRun(context, params, adapters, nullptr).run();
  context.cuda->scratch().reset();
}

void moe_of(const ops::OpContext& context, const ops::MoeParams& params,
            const MoeAdapters& adapters, const std::int32_t* wanted) {
  if (params.num_tokens == 0) return;
  MoeRun(context, params, adapters, wanted).run();
}

}  // namespace winnow::cuda::exact
