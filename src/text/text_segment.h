// A stretch of a rendered prompt and where it came from.
#pragma once

#include <string>

namespace winnow {

/// Text written by the template may hold control tokens; text that came in with the request
/// may not, however it is spelled (frontend.md 1.2, injection).
struct TextSegment {
  std::string text;
  bool is_from_template = true;
};

}  // namespace winnow
