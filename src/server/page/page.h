// The web page at `/`: one file, no request to anywhere but this server.
#pragma once

#include "server/http_message.h"

namespace winnow::server {

/// index.html with its style and scripts in place.
extern const char* const kPageText;

/// The page, under a policy that runs its own script and no other.
HttpResponse page_response();

}  // namespace winnow::server
