// The process's logger: one line per event on stderr, so that stdout stays for results.
#pragma once

#include <spdlog/spdlog.h>

#include <string_view>

namespace winnow {

/// Sets pattern and level ("debug", "info", "warning", "error", "off"); throws Error on another.
void init_log(std::string_view level);

}  // namespace winnow
