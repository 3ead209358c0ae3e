// Times of many requests as percentiles: a table for people, JSON for programs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/flag_set.h"
#include "engine/request.h"

namespace winnow::cli {

struct BenchRequest {
  RequestStats stats;
  std::vector<double> token_seconds;  // since arrival, one per output token
};

struct BenchReport {
  std::string title;
  Json setting;  // what was asked for and on what machine
  double seconds = 0;
  std::vector<BenchRequest> requests;
  std::int64_t peak_bytes = 0;
};

/// Mean and percentiles of seconds.
Json summary_json(std::vector<double> seconds);

Json report_json(const BenchReport& report);
std::string report_text(const Json& report);

/// Throws Error{kIo} naming the flag.
void write_result_file(const std::string& flag, const std::filesystem::path& path,
                       const Json& json);

}  // namespace winnow::cli
