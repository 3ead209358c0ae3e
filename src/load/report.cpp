#include "load/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <string_view>

#include "load/statistics.h"
#include "text/tokenizer.h"

namespace winnow::load {
namespace {

struct MetricName {
  const char* key;
  const char* label;
  const char* title;
};
constexpr std::array<MetricName, 4> kMetrics = {{
    {"ttft", "TTFT", "Time to First Token"},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    {"itl", "ITL", "Inter-token Latency"},
    {"e2el", "E2EL", "End-to-end Latency"},
}};

struct Times {
  std::map<std::string, std::vector<double>> of_metric;  // ms
  std::int64_t num_good = 0;
};

std::int64_t output_tokens(const RequestRecord& record, const Tokenizer* tokenizer) {
  if (record.has_usage) return record.output_tokens;
  if (tokenizer != nullptr) return std::ssize(tokenizer->encode(record.text));
  return std::ssize(record.pieces);
}

/// Whole percents without a point: "p99", "p99.9".
std::string percent_name(double percent) { return fmt::format("p{:g}", percent); }

/// The most tokens that came within one second of the run's clock. An event of several tokens
/// counts as their share of the answer's events.
double peak_tokens_per_second(const RunResult& result, const std::vector<std::int64_t>& counts) {
  std::map<std::int64_t, double> seconds;
  for (std::size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    if (!record.success || record.pieces.empty()) continue;
    const double share = static_cast<double>(counts[i]) / static_cast<double>(record.pieces.size());
    for (const auto& piece : record.pieces) {
      seconds[static_cast<std::int64_t>(record.start + piece.at)] += share;
    }
  }
  double most = 0;
  for (const auto& [second, count] : seconds) most = std::max(most, count);
  return most;
}

Times times_of(const RunResult& result, const std::vector<std::int64_t>& counts,
               const ReportOptions& options) {
  Times out;
  for (std::size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    if (!record.success) continue;
    std::map<std::string, double> own = {
        {"ttft", 1e3 * record.first_token()}, {"tpot", 0.0}, {"e2el", 1e3 * record.latency}};
    if (counts[i] > 1) {
      own["tpot"] = (own["e2el"] - own["ttft"]) / static_cast<double>(counts[i] - 1);
      out.of_metric["tpot"].push_back(own["tpot"]);
    }
    for (const char* key : {"ttft", "e2el"}) out.of_metric[key].push_back(own[key]);
    for (std::size_t k = 1; k < record.pieces.size(); ++k) {
      out.of_metric["itl"].push_back(1e3 * (record.pieces[k].at - record.pieces[k - 1].at));
    }
    out.num_good += std::ranges::all_of(
        options.goodput_ms, [&](const auto& limit) { return own.at(limit.first) <= limit.second; });
  }
  return out;
}

void add_details(Json& out, const RunResult& result, const std::vector<std::int64_t>& inputs,
                 const std::vector<std::int64_t>& counts) {
  out["input_lens"] = inputs;
  out["output_lens"] = counts;
  for (const char* name : {"start_times", "ttfts", "itls", "generated_texts", "errors"}) {
    out[name] = Json::array();
  }
  for (const RequestRecord& record : result.records) {
    out["start_times"].push_back(record.start);
    out["ttfts"].push_back(record.first_token());
    Json gaps = Json::array();
    for (std::size_t k = 1; k < record.pieces.size(); ++k) {
      gaps.push_back(record.pieces[k].at - record.pieces[k - 1].at);
    }
    out["itls"].push_back(std::move(gaps));
    out["generated_texts"].push_back(record.text);
    out["errors"].push_back(record.error);
  }
}

std::string heading(std::string_view title, char fill) {
  const std::string padded =
      title.empty() ? ""
                    : fmt::format("{}{}{}", fill == '=' ? " " : "", title, fill == '=' ? " " : "");
  const std::size_t room = padded.size() < 50 ? 50 - padded.size() : 0;
  return std::string(room / 2, fill) + padded + std::string(room - room / 2, fill) + '\n';
}

std::string row(std::string_view label, const Json& value) {
  if (value.is_number_float()) return fmt::format("{:<40} {:<9.2f}\n", label, value.get<double>());
  return fmt::format("{:<40} {:<9}\n", label,
                     value.is_string() ? value.get<std::string>() : value.dump());
}

}  // namespace

Json result_json(const RunOptions& run, const RunResult& result, const std::vector<Prompt>& prompts,
                 const ReportOptions& options) {
  std::vector<std::int64_t> inputs, counts;
  std::int64_t num_completed = 0, num_counted = 0, total_input = 0, total_output = 0;
  std::map<std::string, std::int64_t> failures;
  for (std::size_t i = 0; i < result.records.size(); ++i) {
    const RequestRecord& record = result.records[i];
    inputs.push_back(record.has_usage ? record.prompt_tokens : prompts[i].num_tokens);
    counts.push_back(record.success ? output_tokens(record, options.tokenizer) : 0);
    if (!record.success) {
      ++failures[record.error];
      continue;
    }
    ++num_completed;
    num_counted += record.has_usage;
    total_input += inputs.back();
    total_output += counts.back();
  }
  const Times times = times_of(result, counts, options);
  const double seconds = std::max(result.seconds, 1e-9);
  const auto a_second = [&](std::int64_t count) { return static_cast<double>(count) / seconds; };

  Json out;
  out["date"] = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(std::time(nullptr)));
  out["endpoint_type"] = run.client.is_chat ? "openai-chat" : "openai";
  out["model_id"] = result.model;
  out["num_prompts"] = prompts.size();
  const double rate = run.arrivals.request_rate;
  out["request_rate"] = std::isinf(rate) ? Json("inf") : Json(rate);
  out["burstiness"] = run.arrivals.burstiness;
  out["max_concurrency"] = run.max_concurrency > 0 ? Json(run.max_concurrency) : Json();
  out["duration"] = result.seconds;
  out["completed"] = num_completed;
  out["failed"] = std::ssize(result.records) - num_completed;
  out["total_input_tokens"] = total_input;
  out["total_output_tokens"] = total_output;
  out["request_throughput"] = a_second(num_completed);
  out["request_goodput"] = options.goodput_ms.empty() ? Json() : Json(a_second(times.num_good));
  out["output_throughput"] = a_second(total_output);
  out["total_token_throughput"] = a_second(total_input + total_output);
  out["max_output_tokens_per_s"] = peak_tokens_per_second(result, counts);
  out["max_concurrent_requests"] = result.peak_concurrency;
  out["requests_with_usage"] = num_counted;
  for (const MetricName& metric : kMetrics) {
    if (std::ranges::find(options.metrics, metric.key) == options.metrics.end()) continue;
    const auto values = times.of_metric.find(metric.key);
    const Summary summary = summarise(
        values == times.of_metric.end() ? std::vector<double>() : values->second, options.percents);
    out[fmt::format("mean_{}_ms", metric.key)] = summary.mean;
    out[fmt::format("median_{}_ms", metric.key)] = summary.median;
    out[fmt::format("std_{}_ms", metric.key)] = summary.deviation;
    for (std::size_t k = 0; k < options.percents.size(); ++k) {
      out[fmt::format("{}_{}_ms", percent_name(options.percents[k]), metric.key)] =
          summary.percentiles[k];
    }
  }
  out["failures"] = failures;
  if (options.is_detailed) add_details(out, result, inputs, counts);
  return out;
}

std::string result_text(const Json& result, const ReportOptions& options) {
  std::string out = heading("Serving Benchmark Result", '=');
  out += row("Successful requests:", result["completed"]);
  out += row("Failed requests:", result["failed"]);
  if (!result["max_concurrency"].is_null()) {
    out += row("Maximum request concurrency:", result["max_concurrency"]);
  }
  if (!result["request_rate"].is_string()) {
    out += row("Request rate configured (RPS):", result["request_rate"]);
  }
  out += row("Benchmark duration (s):", result["duration"]);
  out += row("Total input tokens:", result["total_input_tokens"]);
  out += row("Total generated tokens:", result["total_output_tokens"]);
  out += row("Request throughput (req/s):", result["request_throughput"]);
  if (!result["request_goodput"].is_null()) {
    out += row("Request goodput (req/s):", result["request_goodput"]);
  }
  out += row("Output token throughput (tok/s):", result["output_throughput"]);
  out += row("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"]);
  out += row("Peak concurrent requests:", result["max_concurrent_requests"]);
  out += row("Total token throughput (tok/s):", result["total_token_throughput"]);
  for (const MetricName& metric : kMetrics) {
    const std::string mean = fmt::format("mean_{}_ms", metric.key);
    if (!result.contains(mean)) continue;
    out += heading(metric.title, '-');
    out += row(fmt::format("Mean {} (ms):", metric.label), result[mean]);
    out += row(fmt::format("Median {} (ms):", metric.label),
               result[fmt::format("median_{}_ms", metric.key)]);
    for (const double percent : options.percents) {
      const std::string name = percent_name(percent);
      out += row(fmt::format("P{} {} (ms):", name.substr(1), metric.label),
                 result[fmt::format("{}_{}_ms", name, metric.key)]);
    }
  }
  out += heading("", '=');
  const std::int64_t num_uncounted =
      result["completed"].get<std::int64_t>() - result["requests_with_usage"].get<std::int64_t>();
  if (num_uncounted > 0) {
    out += fmt::format("{} answers came without usage: their tokens are {}.\n", num_uncounted,
                       options.tokenizer != nullptr ? "the tokenizer's count" : "events with text");
  }
  for (const auto& [what, count] : result["failures"].items()) {
    out += fmt::format("failed {} times: {}\n", count.get<std::int64_t>(), what);
  }
  return out;
}

}  // namespace winnow::load
