#include "base/assert.h"

#include <cstdio>
#include <cstdlib>

namespace winnow::detail {

void assertion_failed(std::string_view condition, std::string_view why, const std::string& values,
                      const char* file, int line) {
  fmt::print(stderr, "winnow: internal error: {} ({}){} at {}:{}\n", why, condition, values, file,
             line);
  std::abort();
}

}  // namespace winnow::detail
