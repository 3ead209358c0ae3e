#include "ops/moe/cuda_adapted.h"

#include <span>

#include "ops/cuda/check.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kListThreads = 1024;
/// Adapters of one launch, a bit each.
constexpr std::size_t kLaunchAdapters = 64;

unsigned blocks_of(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

/// Adapters from `first_adapter` on: bit i of `adds` is that of first_adapter + i.
__global__ void exact_mark_adapted(const std::int32_t* adapter_of, std::int64_t num_tokens,
                                   std::int32_t first_adapter, std::uint64_t adds,
                                   std::int32_t* wanted) {
  const std::int64_t t = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= num_tokens) return;
  const std::int32_t adapter = adapter_of[t] - first_adapter;
  const bool is_known = adapter >= 0 && adapter < static_cast<std::int32_t>(kLaunchAdapters);
  const bool is_wanted = is_known && (adds >> adapter & 1U) != 0;
  if (first_adapter == 0 || is_wanted) wanted[t] = is_wanted ? 1 : 0;
}

template <typename T>
__global__ void exact_copy_wanted(const std::int32_t* wanted, std::int64_t count,
                                  std::int64_t width, const T* from, T* to) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < count && wanted[at / width] != 0) to[at] = from[at];
}

template <typename T>
void submit_copy(CUstream_st* stream, const std::int32_t* wanted, std::int64_t count,
                 std::int64_t width, const T* from, T* to) {
  exact_copy_wanted<T><<<blocks_of(count), kThreads, 0, stream>>>(wanted, count, width, from, to);
  check_launch("copying tokens with adapters");
}

/// One block.
__global__ void __launch_bounds__(kListThreads)
    exact_list_wanted(const std::int32_t* wanted, std::int32_t num_tokens, std::int32_t item_rows,
                      std::int32_t num_items, WantedList list) {
  __shared__ std::int32_t count;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  if (thread == 0) count = 0;
  for (std::int32_t t = thread; t < num_tokens; t += kListThreads) list.tokens[t] = -1;
  __syncthreads();
  for (std::int32_t t = thread; t < num_tokens; t += kListThreads) {
    if (wanted[t] == 0) continue;
    const std::int32_t place = atomicAdd(&count, 1);
    list.tokens[place] = t;
    list.place_of[t] = place;
  }
  __syncthreads();
  for (std::int32_t i = thread; i < num_items; i += kListThreads) {
    const std::int32_t left = count - i * item_rows;
    const std::int32_t rows = left < item_rows ? left : item_rows;
    list.items[i] = {0, i * item_rows, rows > 0 ? rows : 0};
  }
}

}  // namespace

MoeAdapters::MoeAdapters(const ops::LoraRows<ops::LoraMoe>* rows) {
  experts.gate_up = {rows, [](const ops::LoraMoe& moe) { return moe.gate_up; }};
  experts.down = {rows, [](const ops::LoraMoe& moe) { return moe.down; }};
  shared.gate_up = {rows, [](const ops::LoraMoe& moe) { return moe.shared.gate_up.table; }};
  shared.down = {rows, [](const ops::LoraMoe& moe) { return moe.shared.down.table; }};
}

void mark_adapted(CUstream_st* stream, const MoeAdapters& adapters, std::int64_t num_tokens,
                  std::int32_t* wanted) {
  const exact::MlpAdapters& experts = adapters.experts;
  const exact::MlpAdapters& shared = adapters.shared;
  const std::size_t count = experts.gate_up.of_adapter().size();
  for (std::size_t first = 0; first < count; first += kLaunchAdapters) {
    std::uint64_t adds = 0;
    for (std::size_t i = 0; i < kLaunchAdapters && first + i < count; ++i) {
      for (const LoraTables* const tables :
           {&experts.gate_up, &experts.down, &shared.gate_up, &shared.down}) {
        if (tables->of_adapter()[first + i] != nullptr) adds |= std::uint64_t{1} << i;
      }
    }
    exact_mark_adapted<<<blocks_of(num_tokens), kThreads, 0, stream>>>(
        experts.gate_up.adapter_of(), num_tokens, static_cast<std::int32_t>(first), adds, wanted);
    check_launch("marking tokens with adapters");
  }
}

void copy_wanted(CUstream_st* stream, const std::int32_t* wanted, std::int64_t num_tokens,
                 std::int64_t width, const float* from, float* to) {
  submit_copy(stream, wanted, num_tokens * width, width, from, to);
}

void copy_wanted(CUstream_st* stream, const std::int32_t* wanted, std::int64_t num_tokens,
                 std::int64_t width, const std::int32_t* from, std::int32_t* to) {
  submit_copy(stream, wanted, num_tokens * width, width, from, to);
}

void list_wanted(CUstream_st* stream, const std::int32_t* wanted, std::int64_t num_tokens,
                 std::int32_t item_rows, std::int32_t num_items, const WantedList& list) {
  exact_list_wanted<<<1, kListThreads, 0, stream>>>(wanted, static_cast<std::int32_t>(num_tokens),
                                                    item_rows, num_items, list);
  check_launch("listing tokens with adapters");
}

}  // namespace winnow::cuda
