// Where the time of a request went, in the three forms in which it is told.
#pragma once

#include <string>
#include <vector>

#include "base/log_field.h"
#include "engine/request.h"
#include "server/json_fields.h"

namespace winnow::server {

/// `metrics` of answers: vLLM's names in milliseconds, and under `attributes` those of
/// OpenTelemetry's spans for generative models, in seconds. Null when nothing was generated.
Json metrics_json(const RequestStats& stats);

/// The value of a Server-Timing header; empty when nothing was generated.
std::string server_timing(const RequestStats& stats);

/// For the request's log line.
void add_log_fields(const RequestStats& stats, std::vector<LogField>& fields);

}  // namespace winnow::server
