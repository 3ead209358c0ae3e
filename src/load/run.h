// Sends prompts at their moments and keeps how each went.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "load/arrivals.h"
#include "load/client.h"

namespace winnow::load {

struct RunOptions {
  ClientOptions client;  // an empty model: the server's first
  ArrivalOptions arrivals;
  std::size_t max_concurrency = 0;          // 0: as many as arrive
  std::size_t num_warmups = 0;              // requests before that are not measured
  std::chrono::seconds ready_timeout{600};  // for the server to answer a first request; 0: no such
};

struct RunResult {
  std::string model;
  double seconds = 0;                  // from the first request to the last answer
  std::vector<RequestRecord> records;  // in the prompts' order
  std::size_t peak_concurrency = 0;
};

/// Throws Error{kUnavailable} when the server does not answer the first request, Error{kIo} for an
/// unknown host. Requests that fail later are counted.
RunResult run(const RunOptions& options, const std::vector<Prompt>& prompts);

}  // namespace winnow::load
