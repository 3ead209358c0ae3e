// The cases of bench/kernel_bench.h under Google Benchmark, for filters and JSON like every other
// folder's: real_time is the best call, floor_us and ratio stand beside it. A case with several
// lines (prefill) becomes several counters.
#include <benchmark/benchmark.h>

#include "ops/bench/kernel_bench.h"

namespace winnow::ops {
namespace {

void run_case(benchmark::State& state, const std::string& name) {
  KernelBenchOptions options;
  options.only = {name};
  for (auto _ : state) {
    const KernelBenchReport report = run_kernel_bench(options);
    state.SetIterationTime(report.measurements.front().best_seconds);
    state.counters["read_gb_s"] = report.read_bytes_per_second / 1e9;
    for (const KernelMeasurement& m : report.measurements) {
      const std::string prefix = report.measurements.size() == 1 ? "" : m.name + "_";
      state.counters[prefix + "best_us"] = m.best_seconds * 1e6;
      state.counters[prefix + "floor_us"] = m.floor_seconds * 1e6;
      state.counters[prefix + "ratio"] = m.fraction();
    }
  }
}

const bool kIsRegistered = [] {
  for (const std::string& name : kernel_bench_cases()) {
    benchmark::RegisterBenchmark(("kernels/" + name).c_str(), run_case, name)
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
}  // namespace winnow::ops
