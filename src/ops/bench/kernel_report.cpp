// The results of kernel_bench.h as text.
#include <fmt/format.h>

#include "ops/bench/kernel_bench.h"

namespace winnow::ops {
namespace {

std::string duration(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

/// In double quotes, with `escape` before a quote inside: a backslash for JSON, a quote for CSV.
/// Names of processors and commits hold no control characters.
std::string quoted(const std::string& text, char escape) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || (c == '\\' && escape == '\\')) out += escape;
    out += c;
  }
  return out + '"';
}
std::string json_string(const std::string& text) { return quoted(text, '\\'); }
std::string csv_field(const std::string& text) { return quoted(text, '"'); }

}  // namespace

std::string format_table(const KernelBenchReport& report) {
  std::string out = fmt::format(
      "{} | {} | {} threads{}\nread {:.1f} GB/s, fp32 multiply-adds {:.0f} G/s\n\n"
      "{:<16} {:<44} {:>10} {:>10} {:>10} {:>6}  {}\n",
      report.machine, report.backend, report.num_threads,
      report.commit.empty() ? "" : " | commit " + report.commit, report.read_bytes_per_second / 1e9,
      report.multiply_adds_per_second / 1e9, "kernel", "shape", "best", "median", "floor", "ratio",
      "what the floor is");
  for (const KernelMeasurement& m : report.measurements) {
    out += fmt::format("{:<16} {:<44} {:>10} {:>10} {:>10} {:>6.2f}  {}\n", m.name, m.shape,
                       duration(m.best_seconds), duration(m.median_seconds),
                       duration(m.floor_seconds), m.fraction(), m.floor);
  }
  if (report.sparse_prefill_gain > 0) {
    out += fmt::format("\nsparse prefill is {:.1f} times faster than dense\n",
                       report.sparse_prefill_gain);
  }
  return out;
}

std::string format_csv(const KernelBenchReport& report) {
  std::string out =
      "machine,commit,backend,threads,read_gb_s,multiply_adds_g_s,kernel,shape,best_us,median_us,"
      "floor_us,ratio\n";
  for (const KernelMeasurement& m : report.measurements) {
    out += fmt::format("{},{},{},{},{:.2f},{:.1f},{},{},{:.2f},{:.2f},{:.2f},{:.3f}\n",
                       csv_field(report.machine), report.commit, report.backend, report.num_threads,
                       report.read_bytes_per_second / 1e9, report.multiply_adds_per_second / 1e9,
                       m.name, csv_field(m.shape), m.best_seconds * 1e6, m.median_seconds * 1e6,
                       m.floor_seconds * 1e6, m.fraction());
  }
  return out;
}

std::string format_json(const KernelBenchReport& report) {
  std::string out = fmt::format(
      "{{\"machine\": {}, \"commit\": {}, \"backend\": {}, \"threads\": {}, "
      "\"read_bytes_per_second\": {:.6g}, \"multiply_adds_per_second\": {:.6g}, "
      "\"sparse_prefill_gain\": {:.4g}, \"kernels\": [",
      json_string(report.machine), json_string(report.commit), json_string(report.backend),
      report.num_threads, report.read_bytes_per_second, report.multiply_adds_per_second,
      report.sparse_prefill_gain);
  const char* separator = "";
  for (const KernelMeasurement& m : report.measurements) {
    out += fmt::format(
        "{}{{\"name\": {}, \"shape\": {}, \"best_seconds\": {:.6g}, \"median_seconds\": {:.6g}, "
        "\"floor_seconds\": {:.6g}, \"ratio\": {:.4g}}}",
        separator, json_string(m.name), json_string(m.shape), m.best_seconds, m.median_seconds,
        m.floor_seconds, m.fraction());
    separator = ", ";
  }
  return out + "]}\n";
}

}  // namespace winnow::ops
