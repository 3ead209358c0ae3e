// Tells systemd how the server is (sd_notify's protocol: a datagram to $NOTIFY_SOCKET), so that a
// unit of Type=notify counts as started once the model is loaded.
#pragma once

#include <string_view>

namespace winnow::cli {

/// Assignments such as "READY=1", one a line. Does nothing, and never fails, without a manager.
void notify_service_manager(std::string_view state);

}  // namespace winnow::cli
