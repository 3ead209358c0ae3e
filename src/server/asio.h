// The only includer of Asio. Boost 1.74's awaitable.hpp uses std::exchange without including
// <utility>, and GCC 12 no longer brings it in by accident.
#pragma once

#include <utility>
//
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace winnow::server {

namespace asio = boost::asio;

using StreamSocket = asio::generic::stream_protocol::socket;  // TCP or a Unix socket
using Strand = asio::strand<asio::io_context::executor_type>;

}  // namespace winnow::server
