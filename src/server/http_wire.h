// The bytes of HTTP/1.1 responses: status line, headers, chunks.
#pragma once

#include <string>
#include <string_view>

#include "server/http_message.h"

namespace winnow::server {

struct ResponseStyle {
  bool is_http_1_1 = true;
  bool keep_alive = true;
  bool head_only = false;  // answer to HEAD
  HeaderList extra_headers;
};

/// A complete response; the body is left out for HEAD.
std::string format_response(const HttpResponse& response, const ResponseStyle& style);

/// The head of a streamed body: chunked for HTTP/1.1, until close for 1.0.
std::string format_stream_head(const HttpResponse& head, const ResponseStyle& style);

/// One piece of a streamed body.
std::string format_chunk(std::string_view bytes, const ResponseStyle& style);
/// The end of a streamed body.
std::string_view format_last_chunk(const ResponseStyle& style);

}  // namespace winnow::server
