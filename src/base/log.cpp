#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <string>

#include "base/error.h"

namespace winnow {

void init_log(std::string_view level) {
  const auto parsed = spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("log level '{}' is not one of debug, info, warning, error, off", level));
  }
  auto logger = spdlog::get("winnow");
  if (!logger) logger = spdlog::stderr_color_mt("winnow");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(logger);
}

}  // namespace winnow
