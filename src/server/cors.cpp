#include "server/cors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace winnow::server {
namespace {

constexpr std::string_view kMethods = "GET, POST, DELETE, HEAD, OPTIONS";

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Cors::Cors(CorsOptions options) : options_(std::move(options)) {}

bool Cors::allows_origin(std::string_view origin) const {
  return !origin.empty() &&
         (contains(options_.allowed_origins, "*") || contains(options_.allowed_origins, origin));
}

bool Cors::is_preflight(const HttpRequest& request) const {
  return request.method == "OPTIONS" && !request.header("origin").empty() &&
         !request.header("access-control-request-method").empty();
}

HttpResponse Cors::preflight(const HttpRequest& request) const {
  HttpResponse response;
  response.content_type = "text/plain";
  const std::string_view method = request.header("access-control-request-method");
  const bool is_method_allowed =
      contains(options_.allowed_methods, "*") || contains(options_.allowed_methods, method);
  if (!allows_origin(request.header("origin")) || !is_method_allowed) {
    response.status = 400;
    response.body = is_method_allowed ? "Disallowed CORS origin" : "Disallowed CORS method";
    return response;
  }
  response.status = 204;
  response.content_type.clear();
  const std::string methods = contains(options_.allowed_methods, "*")
                                  ? std::string(kMethods)
                                  : fmt::format("{}", fmt::join(options_.allowed_methods, ", "));
  // "*" does not cover Authorization in browsers, so the asked headers are repeated instead.
  const std::string headers = contains(options_.allowed_headers, "*")
                                  ? std::string(request.header("access-control-request-headers"))
                                  : fmt::format("{}", fmt::join(options_.allowed_headers, ", "));
  response.headers.emplace_back("Access-Control-Allow-Methods", methods);
  if (!headers.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", headers);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

HeaderList Cors::headers(const HttpRequest& request) const {
  HeaderList out;
  if (options_.allowed_origins.empty()) return out;
  const std::string_view origin = request.header("origin");
  if (!allows_origin(origin)) return out;
  const bool is_any = contains(options_.allowed_origins, "*") && !options_.allow_credentials;
  out.emplace_back("Access-Control-Allow-Origin", is_any ? "*" : std::string(origin));
  if (!is_any) out.emplace_back("Vary", "Origin");
  if (options_.allow_credentials) out.emplace_back("Access-Control-Allow-Credentials", "true");
  out.emplace_back("Access-Control-Expose-Headers", "X-Request-Id");
  return out;
}

}  // namespace winnow::server
