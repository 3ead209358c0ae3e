#include "base/error.h"

#include <utility>

#include "base/assert.h"

namespace winnow {

const ErrorInfo& error_info(ErrorCode code) {
  static constexpr ErrorInfo kBadRequest{"BadRequestError", 400, 1};
  static constexpr ErrorInfo kNotFoundInfo{"NotFoundError", 404, 1};
  static constexpr ErrorInfo kUnauthorizedInfo{"AuthenticationError", 401, 1};
  static constexpr ErrorInfo kMethod{"MethodNotAllowedError", 405, 1};
  static constexpr ErrorInfo kLarge{"RequestTooLargeError", 413, 1};
  static constexpr ErrorInfo kNotImplemented{"NotImplementedError", 501, 1};
  static constexpr ErrorInfo kService{"ServiceUnavailableError", 503, 1};
  static constexpr ErrorInfo kServer{"InternalServerError", 500, 1};
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kInvalidJson:
    case ErrorCode::kInvalidCheckpoint:
      return kBadRequest;
    case ErrorCode::kNotFound:
      return kNotFoundInfo;
    case ErrorCode::kUnauthorized:
      return kUnauthorizedInfo;
    case ErrorCode::kMethodNotAllowed:
      return kMethod;
    case ErrorCode::kTooLarge:
      return kLarge;
    case ErrorCode::kUnsupported:
      return kNotImplemented;
    case ErrorCode::kQueueFull:
    case ErrorCode::kUnavailable:
      return kService;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return kServer;
  }
  WINNOW_ASSERT(false, "error code outside the enum", static_cast<int>(code));
  return kServer;
}

Error::Error(ErrorCode code, const std::string& message, std::string hint, std::string param)
    : std::runtime_error(message), code_(code), hint_(std::move(hint)), param_(std::move(param)) {}

std::string Error::text() const {
  return hint_.empty() ? std::string(what()) : std::string(what()) + "; " + hint_;
}

}  // namespace winnow
