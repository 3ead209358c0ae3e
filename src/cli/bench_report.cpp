#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "load/statistics.h"

namespace winnow::cli {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Json summary_json(std::vector<double> seconds) {
  if (seconds.empty()) return nullptr;
  const auto [least, most] = std::ranges::minmax(seconds);
  const load::Summary summary = load::summarise(std::move(seconds), {90, 99});
  Json out;
  out["mean"] = summary.mean;
  out["p50"] = summary.median;
  out["p90"] = summary.percentiles[0];
  out["p99"] = summary.percentiles[1];
  out["min"] = least;
  out["max"] = most;
  return out;
}

Json report_json(const BenchReport& report) {
  std::vector<double> first, per_token, gaps, whole;
  std::int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  for (const BenchRequest& request : report.requests) {
    const RequestStats& stats = request.stats;
    prompt_tokens += stats.num_prompt_tokens;
    cached_tokens += stats.num_cached_tokens;
    output_tokens += stats.num_output_tokens;
    whole.push_back(seconds_between(stats.arrival, stats.finished));
    const std::vector<double>& at = request.token_seconds;
    if (at.empty()) continue;
    first.push_back(at.front());
    for (std::size_t i = 1; i < at.size(); ++i) gaps.push_back(at[i] - at[i - 1]);
    if (at.size() > 1) {
      per_token.push_back((at.back() - at.front()) / static_cast<double>(at.size() - 1));
    }
  }
  Json out;
  out["benchmark"] = report.title;
  out["setting"] = report.setting;
  out["num_requests"] = report.requests.size();
  out["elapsed_seconds"] = report.seconds;
  out["prompt_tokens"] = prompt_tokens;
  out["cached_tokens"] = cached_tokens;
  out["output_tokens"] = output_tokens;
  const auto rate = [&report](std::int64_t count) {
    return report.seconds > 0 ? static_cast<double>(count) / report.seconds : 0.0;
  };
  out["requests_per_second"] = rate(static_cast<std::int64_t>(report.requests.size()));
  out["output_tokens_per_second"] = rate(output_tokens);
  out["total_tokens_per_second"] = rate(prompt_tokens + output_tokens);
  out["ttft_seconds"] = summary_json(std::move(first));
  out["tpot_seconds"] = summary_json(std::move(per_token));
  out["itl_seconds"] = summary_json(std::move(gaps));
  out["e2e_seconds"] = summary_json(std::move(whole));
  out["peak_resident_bytes"] = report.peak_bytes;
  return out;
}

std::string report_text(const Json& report) {
  std::string out;
  const auto into = std::back_inserter(out);
  fmt::format_to(into, "\n{}\n", report["benchmark"].get<std::string>());
  for (const auto& [key, value] : report["setting"].items()) {
    fmt::format_to(into, "  {:<22} {}\n", key,
                   value.is_string() ? value.get<std::string>() : value.dump());
  }
  fmt::format_to(into, "\n  {:<22} {} in {:.2f} s ({:.2f} a second)\n", "requests",
                 report["num_requests"].get<std::size_t>(), report["elapsed_seconds"].get<double>(),
                 report["requests_per_second"].get<double>());
  fmt::format_to(into, "  {:<22} {} ({} from the prefix cache)\n", "prompt tokens",
                 report["prompt_tokens"].get<std::int64_t>(),
                 report["cached_tokens"].get<std::int64_t>());
  fmt::format_to(into, "  {:<22} {}, {:.1f} a second\n", "output tokens",
                 report["output_tokens"].get<std::int64_t>(),
                 report["output_tokens_per_second"].get<double>());
  fmt::format_to(into, "  {:<22} {:.1f} a second\n", "all tokens",
                 report["total_tokens_per_second"].get<double>());
  fmt::format_to(into, "  {:<22} {:.1f} MB\n", "peak memory",
                 static_cast<double>(report["peak_resident_bytes"].get<std::int64_t>()) / 1e6);
  fmt::format_to(into, "\n  {:<22} {:>10} {:>10} {:>10} {:>10}\n", "milliseconds", "mean", "p50",
                 "p90", "p99");
  for (const auto& [key, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"ttft_seconds", "time to first token"},
           {"tpot_seconds", "time per token"},
           {"itl_seconds", "between two tokens"},
           {"e2e_seconds", "whole request"}}) {
    const Json& row = report[key];
    if (row.is_null()) continue;
    fmt::format_to(into, "  {:<22} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name,
                   row["mean"].get<double>() * 1e3, row["p50"].get<double>() * 1e3,
                   row["p90"].get<double>() * 1e3, row["p99"].get<double>() * 1e3);
  }
  return out;
}

void write_result_file(const std::string& flag, const std::filesystem::path& path,
                       const Json& json) {
  std::ofstream file(path);
  file << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  if (!file.flush()) {
    throw Error(ErrorCode::kIo, fmt::format("{} {}: cannot be written", flag, path.string()));
  }
}

}  // namespace winnow::cli
