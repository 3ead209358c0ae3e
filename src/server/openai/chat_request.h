// POST /v1/chat/completions: the body as a typed request.
#pragma once

#include <string>

#include "server/openai/generation_fields.h"

namespace winnow::server {

struct ChatRequest {
  GenerationFields generation;
  Json messages;            // normalised
  Json tools;               // null or a non-empty list
  Json template_variables;  // kwargs with thinking_mode resolved
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool echo = false;
};

/// Throws Error naming the field.
ChatRequest read_chat_request(const Json& body, const RequestPolicy& policy,
                              const GenerationDefaults& defaults);

/// The part that /tokenize shares: messages, tools, kwargs and the prompt switches.
void read_chat_prompt(Fields& fields, const RequestPolicy& policy, ChatRequest& out);

/// All that the template sees.
Json template_variables(const ChatRequest& request);

}  // namespace winnow::server
