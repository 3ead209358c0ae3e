// For tests of flags.
#pragma once

#include <string>

#include "cli/usage_error.h"

namespace winnow::testing {

/// What `parse` is refused with; empty: it is not refused.
template <typename Parse>
std::string usage_error_text(const Parse& parse) {
  try {
    parse();
  } catch (const cli::UsageError& error) {
    return error.text();
  }
  return {};
}

}  // namespace winnow::testing
