// What a step costs besides the model: scheduling, batch building, sampling and delivery, with a
// runner that does nothing. The sampler's floor is one read of each row of logits: `read_rows` is
// that, over as many rows, and per_row of decode_step is to be compared with it.
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "engine/engine_core.h"
#include "engine/sample/candidates.h"
#include "engine/sample/draw.h"
#include "engine/sample/row_kernels.h"

namespace winnow {
namespace {

/// Logits are written once per row and then left as they are.
class IdleRunner final : public ModelRunner {
 public:
  IdleRunner(std::int32_t vocab_size, std::int32_t num_blocks)
      : vocab_size_(vocab_size), num_blocks_(num_blocks) {}
  std::int32_t vocab_size() const override { return vocab_size_; }
  std::int32_t block_tokens() const override { return 128; }
  std::int32_t num_blocks() const override { return num_blocks_; }
  std::uint64_t cache_identity() const override { return 1; }
  void copy_block(BlockId /*from*/, BlockId /*to*/) override {}
  void run(const Batch& /*batch*/, std::span<float> logits) override {
    if (logits.size() <= num_filled_) return;
    std::normal_distribution<float> normal(0.0F, 3.0F);
    for (std::size_t i = num_filled_; i < logits.size(); ++i) logits[i] = normal(random_);
    num_filled_ = logits.size();
  }

 private:
  std::int32_t vocab_size_, num_blocks_;
  std::size_t num_filled_ = 0;
  std::mt19937_64 random_;
};

enum Kind { kGreedy, kTopKTopP, kPlain, kTopP, kPenalties, kLogprobs };
constexpr const char* kKindNames[] = {"greedy",    "top_k 40, top_p 0.95", "temperature 1",
                                      "top_p 0.9", "penalties, greedy",    "greedy, 5 logprobs"};

SamplingParams params_of(Kind kind) {
  SamplingParams params;
  params.max_tokens = 1 << 20;
  params.ignore_eos = true;
  if (kind == kGreedy || kind == kPenalties || kind == kLogprobs) params.temperature = 0.0F;
  if (kind == kTopKTopP) params.top_k = 40, params.top_p = 0.95F;
  if (kind == kTopP) params.top_p = 0.9F;
  if (kind == kPenalties) params.repetition_penalty = 1.1F, params.frequency_penalty = 0.1F;
  if (kind == kLogprobs) params.logprobs = 5;
  return params;
}

void decode_step(benchmark::State& state) {
  const auto num_sequences = static_cast<std::int32_t>(state.range(0));
  const auto vocab_size = static_cast<std::int32_t>(state.range(1));
  const auto kind = static_cast<Kind>(state.range(2));
  EngineOptions options;
  options.max_model_len = 1 << 21;
  options.max_num_seqs = num_sequences;
  options.max_num_batched_tokens = std::max(2048, num_sequences);
  IdleRunner runner(vocab_size, 1 << 18);
  EngineCore core(options, runner, nullptr);
  for (std::int32_t i = 0; i < num_sequences; ++i) {
    GenerationRequest request;
    request.prompt.resize(100);
    std::iota(request.prompt.begin(), request.prompt.end(), i % 1000);
    request.sampling = params_of(kind);
    request.on_update = [](OutputUpdate&& update) { benchmark::DoNotOptimize(update); };
    core.submit(static_cast<RequestId>(i) + 1, std::move(request), Clock::now());
  }
  while (core.stats().num_waiting > 0) core.step();
  for (int i = 0; i < 20; ++i) core.step();
  for (auto _ : state) core.step();
  state.SetLabel(kKindNames[kind]);
  state.counters["per_row"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_sequences),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(decode_step)
    ->ArgNames({"sequences", "vocab", "kind"})
    ->ArgsProduct({{1, 16, 256},
                   {64},
                   {kGreedy}})  // a vocabulary so small that this is scheduling and delivery
    ->ArgsProduct({{1, 16, 256},
                   {8192, 200064},
                   {kGreedy, kTopKTopP, kPlain, kTopP, kPenalties, kLogprobs}})
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.1);

void read_rows(benchmark::State& state) {
  const std::int64_t num_rows = state.range(0);
  std::vector<std::uint64_t> rows(static_cast<std::size_t>(num_rows * state.range(1) / 2), 1);
  for (auto _ : state) {
    benchmark::DoNotOptimize(std::accumulate(rows.begin(), rows.end(), std::uint64_t{0}));
  }
  state.SetBytesProcessed(state.iterations() * num_rows * state.range(1) * 4);
  state.counters["per_row"] =
      benchmark::Counter(static_cast<double>(state.iterations() * num_rows),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(read_rows)
    ->ArgNames({"sequences", "vocab"})
    ->ArgsProduct({{1, 16, 256}, {8192, 200064}})
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.1);

std::vector<float> random_row(std::int64_t size) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0.0F, 3.0F);
  std::vector<float> row(static_cast<std::size_t>(size));
  for (float& x : row) x = normal(random);
  return row;
}

void scan(benchmark::State& state) {
  const std::vector<float> row = random_row(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(row_kernels().scan(row));
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}
BENCHMARK(scan)->Arg(200064)->Unit(benchmark::kMicrosecond);

void softmax_sum(benchmark::State& state) {
  const std::vector<float> row = random_row(state.range(0));
  const float max = row_kernels().scan(row).max;
  for (auto _ : state) benchmark::DoNotOptimize(row_kernels().sum_weights(row, max, 1.0F));
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
}
BENCHMARK(softmax_sum)->Arg(200064)->Unit(benchmark::kMicrosecond);

void top_k(benchmark::State& state) {
  const std::vector<float> row = random_row(200064);
  std::vector<Candidate> out;
  for (auto _ : state) select_top_k(row, static_cast<std::int32_t>(state.range(0)), out);
}
BENCHMARK(top_k)->Arg(1)->Arg(40)->Arg(1000)->Arg(50000)->Unit(benchmark::kMicrosecond);

void race(benchmark::State& state) {
  const std::vector<float> row = random_row(200064);
  const RowScan scan = row_kernels().scan(row);
  std::uint32_t position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(draw_row({.logits = row, .max = scan.max, .argmax = scan.argmax},
                                      {.seed = 1, .choice = 0, .position = ++position}));
  }
}
BENCHMARK(race)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace winnow
