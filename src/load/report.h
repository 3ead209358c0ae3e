// A run as the table and the JSON that people know from `vllm bench serve`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "load/run.h"

namespace winnow {
class Tokenizer;
}

namespace winnow::load {

struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> percents = {50, 90, 99};
  std::map<std::string, double> goodput_ms;  // limits that a good request keeps: ttft, tpot, e2el
  const Tokenizer* tokenizer = nullptr;      // counts where the server does not
  bool is_detailed = false;                  // a list of each request's times and text as well
};

/// The keys of vLLM's result file. Output tokens are the server's own count (usage); without one
/// the tokenizer's count of the text, and without that the events with text.
Json result_json(const RunOptions& run, const RunResult& result, const std::vector<Prompt>& prompts,
                 const ReportOptions& options);

/// The table of such a result.
std::string result_text(const Json& result, const ReportOptions& options);

}  // namespace winnow::load
