// Requests of the terminal verbs: the same validation, template and text as the server's, without
// sockets.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "cli/engine_setup.h"
#include "cli/flag_set.h"
#include "engine/request.h"

namespace winnow::cli {

/// `body` as below: what the server would ask of the engine for it. Throws Error for what it would
/// refuse.
GenerationRequest prepare_locally(const server::ServingModel& model, const Json& body);

struct LocalResult {
  std::string reasoning;  // thinking, without its markers
  std::string text;
  FinishReason finish_reason = FinishReason::kNone;
  RequestStats stats;
};

/// `body` as for /v1/chat/completions (or /v1/completions when it holds `prompt`), one choice.
/// `on_text` gets each new piece of the answer, `on_reasoning` (may be null) of the thinking; a set
/// `cancel` ends the run with what is there. Throws Error for what the server would refuse and for
/// a failed step.
LocalResult generate_locally(const server::ServingModel& model, const Json& body,
                             const std::function<void(std::string_view)>& on_text,
                             const std::atomic<bool>* cancel = nullptr,
                             const std::function<void(std::string_view)>& on_reasoning = {});

}  // namespace winnow::cli
