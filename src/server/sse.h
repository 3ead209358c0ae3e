// Server-sent events as OpenAI clients read them: one line of JSON an event.
#pragma once

#include <string>
#include <string_view>

namespace winnow::server {

inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ": keep-alive\n\n";

/// "data: " + json + blank line. `json` holds no line break (a JSON writer escapes them).
void append_sse_event(std::string& out, std::string_view json);
/// The same with the event's name before it, as the APIs with typed events have it.
void append_named_sse_event(std::string& out, std::string_view name, std::string_view json);

}  // namespace winnow::server
