// Drawing tokens from rows of M3's vocabulary, beside the time that reading the rows once takes.
// Rows are rotated past the L2 cache, which in a step still holds what lm_head has just written.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"
#include "ops/sample/sample.h"

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t status_ = (call);                                                      \
    if (status_ != cudaSuccess) {                                                            \
      std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (false)

namespace winnow {
namespace {

constexpr std::int32_t kVocab = 200064;
constexpr std::int32_t kRows = 256;         // in memory: 205 MB
constexpr std::int32_t kMostLaunches = 16;  // of one graph
constexpr int kRuns = 31;
constexpr double kBytesPerMicrosecond = 4.8e6;  // HBM of an H200

/// About normal with deviation 2.5, as logits are.
__global__ void fill(float* logits, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Philox4 bits =
      philox4x32(5, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0});
  const float radius = sqrtf(-2.0F * logf((static_cast<float>(bits[0] >> 8) + 0.5F) * 0x1p-24F));
  logits[i] = 2.5F * radius * cospif(static_cast<float>(bits[1]) * 0x1p-31F);
}

struct Case {
  const char* name;
  ops::Draw draw;
};

double median_microseconds(cuda::Context& context, const float* logits, const ops::Draw* draws,
                           std::int32_t num_rows, ops::Drawn* out) {
  const ops::OpContext ops_context{.cuda = &context};
  cudaStream_t const stream = context.stream();
  const std::int32_t num_launches = std::clamp(2 * kRows / num_rows, 2, kMostLaunches);
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (std::int32_t i = 0; i < num_launches; ++i) {
    const std::int64_t first = std::int64_t{i} * num_rows % kRows;
    cuda::sample(ops_context, {.logits = logits + first * kVocab,
                               .vocab_size = kVocab,
                               .draws = draws,
                               .num_draws = num_rows,
                               .out = out});
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int run = 0; run < kRuns + 2; ++run) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float milliseconds = 0.0F;
    CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (run >= 2) times.push_back(milliseconds * 1e3 / num_launches);
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::ranges::nth_element(times, times.begin() + kRuns / 2);
  return times[kRuns / 2];
}

/// Three ways to ask for the best token of a row.
bool check(cuda::Context& context, const float* logits) {
  constexpr std::int32_t kChecked = 8;
  std::vector<float> host(std::size_t{kChecked} * kVocab);
  context.memory()->download(host.data(), logits,
                             std::ssize(host) * static_cast<std::int64_t>(sizeof(float)));
  std::vector<ops::Draw> draws;
  for (std::int32_t row = 0; row < kChecked; ++row) {
    draws.push_back({.row = row, .is_greedy = 1});
    draws.push_back({.top_k = 1, .row = row});
    draws.push_back({.top_p = 1e-6F, .row = row});
  }
  const ops::Array<ops::Draw> device_draws(context.memory(), std::span<const ops::Draw>(draws),
                                           "draws");
  const ops::Array<ops::Drawn> device_drawn(context.memory(), std::ssize(draws), "drawn");
  cuda::sample({.cuda = &context}, {.logits = logits,
                                    .vocab_size = kVocab,
                                    .draws = device_draws.data(),
                                    .num_draws = static_cast<std::int32_t>(draws.size()),
                                    .out = device_drawn.data()});
  std::vector<ops::Drawn> drawn(draws.size());
  context.memory()->download(drawn.data(), device_drawn.data(), device_drawn.num_bytes());
  std::size_t num_right = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const auto row = host.begin() + std::ptrdiff_t{draws[i].row} * kVocab;
    const auto best = std::max_element(row, row + kVocab) - row;
    num_right += drawn[i].status == ops::DrawStatus::kOk && drawn[i].token == best ? 1 : 0;
  }
  std::printf("%zu of %zu draws give the best token\n", num_right, draws.size());
  return num_right == draws.size();
}

int run(bool is_check) {
  cuda::Context context(0);
  const std::int64_t count = std::int64_t{kRows} * kVocab;
  const ops::Array<float> logits(context.memory(), count, "logits");
  fill<<<static_cast<unsigned>((count + 255) / 256), 256, 0, context.stream()>>>(logits.data(),
                                                                                 count);
  CHECK(cudaGetLastError());
  if (!check(context, logits.data())) return 1;
  if (is_check) return 0;
  const Case cases[] = {
      {"greedy", {.is_greedy = 1}},
      {"T 1, top-k 40, top-p 0.95", {.top_p = 0.95F, .top_k = 40}},
      {"T 1, top-k 40", {.top_k = 40}},
      {"T 1, top-p 0.95", {.top_p = 0.95F}},
      {"T 1, min-p 0.05", {.min_p = 0.05F}},
      {"T 1", {}},
      {"T 5, top-p 0.95", {.inverse_temperature = 0.2F, .top_p = 0.95F}},
  };
  const ops::Array<ops::Drawn> drawn(context.memory(), kRows, "drawn");
  std::printf("%-28s", "us for rows of 200,064");
  const std::int32_t row_counts[] = {1, 8, 32, 256};
  for (const std::int32_t rows : row_counts) std::printf("%10d", rows);
  std::printf("\n%-28s", "reading them once");
  for (const std::int32_t rows : row_counts) {
    std::printf("%10.2f", rows * (kVocab * 4.0) / kBytesPerMicrosecond);
  }
  for (const Case& c : cases) {
    std::vector<ops::Draw> draws(kRows, c.draw);
    for (std::int32_t i = 0; i < kRows; ++i) {
      draws[static_cast<std::size_t>(i)].row = i;
      draws[static_cast<std::size_t>(i)].seed = static_cast<std::uint64_t>(i) * 77;
    }
    const ops::Array<ops::Draw> device_draws(context.memory(), std::span<const ops::Draw>(draws),
                                             "draws");
    std::printf("\n%-28s", c.name);
    std::fflush(stdout);
    for (const std::int32_t rows : row_counts) {
      std::printf("%10.2f", median_microseconds(context, logits.data(), device_draws.data(), rows,
                                                drawn.data()));
    }
  }
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::run(argc > 1 && std::string_view(argv[1]) == "check");
}
