// POST /v1/completions: the body as a typed request.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "server/openai/generation_fields.h"

namespace winnow::server {

using RawPrompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationFields generation;
  std::vector<RawPrompt> prompts;
  bool echo = false;
};

/// Throws Error naming the field.
CompletionRequest read_completion_request(const Json& body, const RequestPolicy& policy,
                                          const GenerationDefaults& defaults);

}  // namespace winnow::server
