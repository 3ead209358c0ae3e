// Checks of our own invariants; stay on in release. Nothing from outside may reach one.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace winnow::detail {

[[noreturn]] void assertion_failed(std::string_view condition, std::string_view why,
                                   const std::string& values, const char* file, int line);

template <typename... Values>
[[noreturn]] [[gnu::cold]] void fail_assert(std::string_view condition, const char* file, int line,
                                            std::string_view why, const Values&... values) {
  std::string text;
  ((text += fmt::format(" [{}]", values)), ...);
  assertion_failed(condition, why, text, file, line);
}

}  // namespace winnow::detail

/// WINNOW_ASSERT(condition, "why it must hold", values…): prints the values and ends the process.
#define WINNOW_ASSERT(condition, ...) \
  (static_cast<bool>(condition)       \
       ? static_cast<void>(0)         \
       : ::winnow::detail::fail_assert(#condition, __FILE__, __LINE__, __VA_ARGS__))
