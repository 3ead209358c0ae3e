// The web page at `/`: one file, no request to anywhere but this server.
#pragma once

#include "server/http_message.h"

namespace winnow::server {

HttpResponse page_response();

}  // namespace winnow::server
