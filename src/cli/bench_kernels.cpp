// winnow bench kernels: operations at M3's real sizes beside the limits of this machine.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "cli/flag_set.h"
#include "cli/usage_error.h"
#include "cli/verbs.h"
#include "ops/bench/kernel_bench.h"

namespace winnow::cli {
namespace {

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file) throw Error(ErrorCode::kIo, fmt::format("{}: cannot be written", path.string()));
}

/// "Intel(R) Xeon(R) Platinum" as a file name.
std::string file_name(const std::string& machine) {
  std::string out;
  for (const char c : machine) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (is_plain) out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    if (!is_plain && !out.empty() && out.back() != '-') out.push_back('-');
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "machine" : out;
}

}  // namespace

int run_bench_kernels(const Words& words) {
  FlagSet set("bench kernels");
  ops::KernelBenchOptions options;
  std::string output_json, output_dir, log = "warning";
  std::optional<std::int64_t> threads, memory;
  bool list = false;
  set.group("Benchmark");
  set.add_positional("CASE", options.only, "Cases to run (default: all)");
  set.add_switch("list", list, "Print the names of the cases");
  set.add_real("seconds-per-case", options.seconds_per_case, "Time for each case (default 2)");
  set.add_human_integer("memory-bytes", memory,
                        "Memory for weights (default: half of what is free)");
  set.add_string("output-json", output_json, "File for the results");
  set.add_string("output-dir", output_dir, "Folder for MACHINE.csv");
  set.add_string("commit", options.commit, "Printed with the results");
  set.group("Machine");
  set.add_string("backend", options.backend, "Kernels",
                 {"auto", "scalar", "cpu", "cpu-avx512", "cpu-avx2", "cpu-portable"});
  set.add_integer("threads", threads, "Compute threads (default: one per core)");
  set.add_switch("pin-threads", options.pin_threads, "Bind each compute thread to its core");
  set.add_string("log-level", log, "Log lines on stderr",
                 {"debug", "info", "warning", "error", "off"});
  if (!set.parse(words)) return 0;
  init_log(log);
  if (list) {
    for (const std::string& name : ops::kernel_bench_cases()) fmt::print("{}\n", name);
    return 0;
  }
  if (threads.value_or(1) < 1) throw UsageError("--threads: below 1");
  options.num_threads = static_cast<int>(threads.value_or(0));
  options.memory_bytes = memory.value_or(0);
  const ops::KernelBenchReport report = ops::run_kernel_bench(
      options, [](const std::string& name) { fmt::print(stderr, "{} …\n", name); });
  fmt::print("{}", ops::format_table(report));
  if (!output_json.empty()) write_file(output_json, ops::format_json(report) + "\n");
  if (!output_dir.empty()) {
    std::filesystem::create_directories(output_dir);
    write_file(std::filesystem::path(output_dir) / (file_name(report.machine) + ".csv"),
               ops::format_csv(report));
  }
  return 0;
}

}  // namespace winnow::cli
