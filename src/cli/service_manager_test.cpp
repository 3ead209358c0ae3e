#include "cli/service_manager.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "checkpoint/testing/temporary_folder.h"

namespace winnow::cli {
namespace {

TEST(ServiceManager, IsToldThroughItsSocket) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "notify").string();
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  notify_service_manager("READY=1\nSTATUS=serving");
  std::array<char, 64> bytes{};
  const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  EXPECT_EQ(std::string(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))),
            "READY=1\nSTATUS=serving");
  ::close(socket);
  notify_service_manager("READY=1");  // a manager that has gone
  ::setenv("NOTIFY_SOCKET", std::string(300, 'x').c_str(), 1);
  notify_service_manager("READY=1");  // a path that no socket has
  ::unsetenv("NOTIFY_SOCKET");
  notify_service_manager("READY=1");
}

}  // namespace
}  // namespace winnow::cli
