// Errors as Anthropic's clients read them. Source: spec/serving-fields.md 2.8.
#pragma once

#include <string>
#include <string_view>

#include "server/http_message.h"

namespace winnow::server {

/// /v1/messages and what is below it.
bool is_anthropic_route(std::string_view path);

/// The type that goes with a status: invalid_request_error, overloaded_error, …
std::string_view anthropic_error_type(int status);

/// {"type":"error","error":{"type","message"}} from a response that error_response() made; its
/// status and headers stay.
HttpResponse anthropic_error(const HttpResponse& response);
std::string anthropic_error_body(const HttpResponse& response);

/// For the header `request-id`: the client's own X-Request-Id, or a new one.
std::string anthropic_request_id(const HttpRequest& request);

}  // namespace winnow::server
