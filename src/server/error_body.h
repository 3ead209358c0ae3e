// Errors as the API reports them. Source: spec/serving.md 2.9, serving-fields.md 2.1.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http_message.h"

namespace winnow::server {

/// {"error":{"message","type","param","code"}}
std::string error_body(int status, std::string_view type, std::string_view message,
                       std::string_view param = {});
std::string error_body(const Error& error);

/// The type that goes with a status when no Error is at hand.
std::string_view error_type(int status);

HttpResponse error_response(int status, std::string_view message, std::string_view param = {});
/// With Retry-After for what may work later.
HttpResponse error_response(const Error& error);

/// Replaces absolute file paths by their last component: messages go to strangers.
std::string without_paths(std::string_view message);

}  // namespace winnow::server
