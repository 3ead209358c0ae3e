// The process's logger: one line per event on stderr, so that stdout stays for results. A line is
// text for people, or one JSON object for collectors; both tell the same.
#pragma once

#include <spdlog/spdlog.h>

#include <span>
#include <string>
#include <string_view>

#include "base/log_field.h"

namespace winnow {

enum class LogFormat { kText, kJson };

/// Sets level ("debug", "info", "warning", "error", "off"; throws Error on another) and format.
void init_log(std::string_view level, LogFormat format = LogFormat::kText);
LogFormat log_format();

/// An event with facts of its own: `message key=value …` in text, members in JSON. Values from
/// outside are safe: what would break a line is escaped.
void log_event(spdlog::level::level_enum level, std::string_view message,
               std::span<const LogField> fields);

/// `text` as a JSON string, quotes included; bytes that are no UTF-8 become U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace winnow
