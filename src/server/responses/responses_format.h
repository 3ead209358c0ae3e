// The response object and its events. Source: spec/serving-fields.md 2.7.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/openai/reply_format.h"

namespace winnow::server {

struct ResponsesFormatOptions {
  Json response;  // id, created_at, model and what is repeated of the request
  const Tokenizer* tokenizer = nullptr;
  bool want_logprobs = false;
  bool seals_reasoning = false;
  /// The end of it: the object, and its output items as they go on in the conversation.
  std::function<void(const Json& response)> on_end;
  /// Neither completed nor failed: the client went away.
  std::function<void()> on_dropped;
};

std::unique_ptr<ReplyFormat> make_responses_format(ResponsesFormatOptions options);

/// The object while nothing is there yet.
Json running_response(const Json& response, const char* status);

}  // namespace winnow::server
