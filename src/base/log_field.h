// A fact of a logged event.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace winnow {

struct LogField {
  std::string_view key;  // of letters, digits, _ and .; lives as long as the program
  std::variant<std::string, std::int64_t, double> value;
};

}  // namespace winnow
