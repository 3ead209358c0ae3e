// Cross-origin headers for browser pages served from elsewhere. Off unless origins are given.
#pragma once

#include <string>
#include <vector>

#include "server/http_message.h"

namespace winnow::server {

struct CorsOptions {
  std::vector<std::string> allowed_origins;  // empty: off; "*": all
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
};

class Cors {
 public:
  explicit Cors(CorsOptions options);
  bool is_preflight(const HttpRequest& request) const;
  /// 204 when origin, method and headers are allowed, else 400 naming what is not.
  HttpResponse preflight(const HttpRequest& request) const;
  /// Headers for any response to this request; none when its origin is not allowed.
  HeaderList headers(const HttpRequest& request) const;

 private:
  bool allows_origin(std::string_view origin) const;
  CorsOptions options_;
};

}  // namespace winnow::server
