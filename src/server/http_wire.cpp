#include "server/http_wire.h"

#include <fmt/format.h>

#include <iterator>

namespace winnow::server {
namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

std::string format_head(const HttpResponse& response, const ResponseStyle& style) {
  std::string out;
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\nServer: winnow\r\n", response.status,
                 reason_phrase(response.status));
  if (!response.content_type.empty()) {
    fmt::format_to(std::back_inserter(out), "Content-Type: {}\r\n", response.content_type);
  }
  for (const HeaderList* list : {&response.headers, &style.extra_headers}) {
    for (const auto& [name, value] : *list) {
      fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
    }
  }
  out += style.keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return out;
}

}  // namespace

std::string format_response(const HttpResponse& response, const ResponseStyle& style) {
  std::string out = format_head(response, style);
  if (response.status != 204) {
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", response.body.size());
  }
  out += "\r\n";
  if (!style.head_only) out += response.body;
  return out;
}

std::string format_stream_head(const HttpResponse& head, const ResponseStyle& style) {
  std::string out = format_head(head, style);
  if (style.is_http_1_1) out += "Transfer-Encoding: chunked\r\n";
  out += "\r\n";
  return out;
}

std::string format_chunk(std::string_view bytes, const ResponseStyle& style) {
  if (!style.is_http_1_1) return std::string(bytes);
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

std::string_view format_last_chunk(const ResponseStyle& style) {
  return style.is_http_1_1 ? "0\r\n\r\n" : "";
}

}  // namespace winnow::server
