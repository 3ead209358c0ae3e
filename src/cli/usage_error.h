// A command line that cannot be understood: exit code 2, where other errors give 1.
#pragma once

#include "base/error.h"

namespace winnow::cli {

class UsageError : public Error {
 public:
  explicit UsageError(const std::string& message, std::string hint = {})
      : Error(ErrorCode::kInvalidArgument, message, std::move(hint)) {}
};

}  // namespace winnow::cli
