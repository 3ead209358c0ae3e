#include "server/error_body.h"

#include <cctype>
#include <nlohmann/json.hpp>

namespace winnow::server {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kRetryAfterSeconds = "1";

bool is_path_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '.' || c == '-' ||
         c == '_' || c == '+';
}

}  // namespace

std::string error_body(int status, std::string_view type, std::string_view message,
                       std::string_view param) {
  Json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = param.empty() ? Json(nullptr) : Json(param);
  error["code"] = status;
  Json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_body(const Error& error) {
  const ErrorInfo& info = error_info(error.code());
  return error_body(info.http_status, info.name, without_paths(error.text()), error.param());
}

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 408:
      return "RequestTimeoutError";
    case 409:
      return "ConflictError";
    case 413:
      return "RequestTooLargeError";
    case 415:
      return "UnsupportedMediaTypeError";
    case 422:
      return "UnprocessableEntityError";
    case 429:
      return "RateLimitError";
    case 431:
      return "RequestHeaderTooLargeError";
    case 500:
      return "InternalServerError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return "BadRequestError";
  }
}

HttpResponse error_response(int status, std::string_view message, std::string_view param) {
  HttpResponse response;
  response.status = status;
  response.body = error_body(status, error_type(status), message, param);
  if (status == 503 || status == 429) {
    response.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  }
  return response;
}

HttpResponse error_response(const Error& error) {
  HttpResponse response;
  response.status = error_info(error.code()).http_status;
  response.body = error_body(error);
  if (response.status == 503) response.headers.emplace_back("Retry-After", kRetryAfterSeconds);
  return response;
}

std::string without_paths(std::string_view message) {
  std::string out;
  std::size_t i = 0;
  while (i < message.size()) {
    const bool starts_word = i == 0 || message[i - 1] == ' ' || message[i - 1] == '\'' ||
                             message[i - 1] == '"' || message[i - 1] == '(';
    if (message[i] == '/' && starts_word) {
      std::size_t end = i;
      while (end < message.size() && is_path_char(message[end])) ++end;
      const std::string_view path = message.substr(i, end - i);
      const std::size_t slash = path.rfind('/');
      // "/v1/models" and the like are routes, not files.
      if (slash > 0 && !path.starts_with("/v1") && path.find('/', 1) != std::string_view::npos) {
        out += path.substr(slash + 1);
      } else {
        out += path;
      }
      i = end;
      continue;
    }
    out.push_back(message[i++]);
  }
  return out;
}

}  // namespace winnow::server
