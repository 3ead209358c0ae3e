#include "server/anthropic/error_form.h"

#include "server/json_fields.h"
#include "server/openai/prepare.h"
#include "server/openai/reply_format.h"

namespace winnow::server {

bool is_anthropic_route(std::string_view path) {
  constexpr std::string_view kRoot = "/v1/messages";
  return path == kRoot || (path.starts_with(kRoot) && path[kRoot.size()] == '/');
}

std::string_view anthropic_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
    case 504:
      return "timeout_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string anthropic_error_body(const HttpResponse& response) {
  const Json given = Json::parse(response.body, nullptr, false);
  std::string message = "the request failed";
  if (given.is_object() && given.contains("error") && given["error"].is_object()) {
    message = given["error"].value("message", message);
  }
  Json body;
  body["type"] = "error";
  body["error"] = {{"type", anthropic_error_type(response.status)}, {"message", message}};
  return dump_json(body);
}

HttpResponse anthropic_error(const HttpResponse& response) {
  HttpResponse out = response;
  out.body = anthropic_error_body(response);
  return out;
}

std::string anthropic_request_id(const HttpRequest& request) {
  const std::string id = clean_request_id(request.header("x-request-id"));
  return id.empty() ? "req_" + request.id : id;
}

}  // namespace winnow::server
