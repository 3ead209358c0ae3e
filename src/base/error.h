// The one exception type of the project: what ends a load, a request or an engine step.
// Ordinary "no" answers (queue full, no free block) are return values instead.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace winnow {

/// Closed list; error_info() maps each to an HTTP status, the API's error type and an exit code.
enum class ErrorCode {
  kInvalidArgument,  // a flag, field or value outside what is accepted
  kInvalidJson,      // a body or config file that is not JSON or not of the schema
  kInvalidCheckpoint,
  kNotFound,
  kUnauthorized,
  kMethodNotAllowed,
  kTooLarge,
  kUnsupported,  // understood, but not offered here
  kQueueFull,
  kUnavailable,  // loading, draining or broken
  kOutOfMemory,
  kIo,
  kInternal,
};

struct ErrorInfo {
  std::string_view name;  // "BadRequestError", as API clients see it
  int http_status;
  int exit_code;
};

const ErrorInfo& error_info(ErrorCode code);

/// `message` names the thing, its value and what is accepted; `hint` (may be empty) says what to
/// do; `param` (may be empty) is the request field at fault.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string hint = {}, std::string param = {});

  ErrorCode code() const { return code_; }
  const std::string& hint() const { return hint_; }
  const std::string& param() const { return param_; }
  /// message, and the hint after "; " when there is one.
  std::string text() const;

 private:
  ErrorCode code_;
  std::string hint_;
  std::string param_;
};

}  // namespace winnow
