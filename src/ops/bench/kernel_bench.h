// `winnow bench kernels`: operations at MiniMax-M3's real sizes on this machine, each beside the
// least time that memory or arithmetic allows. Random weights and caches; times do not depend on
// the values. Run by the command line and, case by case, by ops_bench.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace winnow::ops {

struct KernelBenchOptions {
  std::string backend = "auto";  // as make_backend() takes it
  int num_threads = 0;           // 0: one per core
  bool pin_threads = true;
  std::int64_t memory_bytes = 0;  // for weights; 0: half of what is available
  double seconds_per_case = 2.0;  // repeats until then, three times at least
  std::vector<std::string> only;  // names of cases; empty: all
  std::string commit;             // printed with the results, may be empty
};

/// One line of the table. Times are of one call.
struct KernelMeasurement {
  std::string name;   // "nvfp4_gemv"
  std::string shape;  // "3072 x 6144, cold"
  double best_seconds = 0;
  double median_seconds = 0;
  double floor_seconds = 0;  // 0: no floor is stated
  std::string floor;         // "10.6 MB at 46.2 GB/s"
  /// floor / best: the fraction of the limit that was reached.
  double fraction() const { return best_seconds > 0 ? floor_seconds / best_seconds : 0; }
};

struct KernelBenchReport {
  std::string machine;  // name of the CPU
  std::string backend;
  std::string commit;
  int num_threads = 1;
  double read_bytes_per_second = 0;     // best of this run, all threads
  double multiply_adds_per_second = 0;  // fp32 fused multiply-adds, all threads, from registers
  std::vector<KernelMeasurement> measurements;
  /// Time of dense over time of sparse prefill; 0 when one was not run.
  double sparse_prefill_gain = 0;
};

/// Names of the cases, in the order they run.
std::vector<std::string> kernel_bench_cases();

/// Throws Error on an unknown backend or case, or when memory does not suffice. `progress` (may be
/// empty) hears each case's name before it starts.
KernelBenchReport run_kernel_bench(const KernelBenchOptions& options,
                                   const std::function<void(const std::string&)>& progress = {});

/// For people: a header and one line a case.
std::string format_table(const KernelBenchReport& report);
/// For bench/results: a header line and one line a case.
std::string format_csv(const KernelBenchReport& report);
/// One object with everything.
std::string format_json(const KernelBenchReport& report);

}  // namespace winnow::ops
