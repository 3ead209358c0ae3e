#include "server/sse.h"

#include "base/assert.h"

namespace winnow::server {

void append_sse_event(std::string& out, std::string_view json) {
  WINNOW_ASSERT(json.find('\n') == std::string_view::npos, "an event is one line", json.size());
  out += "data: ";
  out += json;
  out += "\n\n";
}

void append_named_sse_event(std::string& out, std::string_view name, std::string_view json) {
  out += "event: ";
  out += name;
  out += '\n';
  append_sse_event(out, json);
}

}  // namespace winnow::server
