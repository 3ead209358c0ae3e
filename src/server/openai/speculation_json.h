// A request's drafts as its reply reports them. Source: spec/speculative.md 5.
#pragma once

#include <cstdint>

#include "engine/request.h"
#include "server/json_fields.h"

namespace winnow::server {

/// How much of a request's drafts its reply tells.
enum class DraftReport { kNone, kSummary, kDetailed };

/// null where nothing was drafted. `num_speculative_tokens`: the most of one step.
Json speculation_json(const RequestStats& stats, std::int32_t num_speculative_tokens,
                      DraftReport report);

}  // namespace winnow::server
