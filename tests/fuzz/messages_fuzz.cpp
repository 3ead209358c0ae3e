// A body of Anthropic's /v1/messages or count_tokens: translated to a chat body which the chat
// route then takes or refuses, or refused itself; always with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "server/anthropic/messages_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  using namespace winnow;
  using namespace winnow::server;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RequestPolicy policy;
  try {
    const MessagesRequest message =
        read_messages_request(parse_body(text), policy, data[0] % 2 == 1);
    const ChatRequest chat = read_chat_request(message.chat, policy, {});
    (void)template_variables(chat).dump(-1, ' ', false, Json::error_handler_t::replace);
  } catch (const Error&) {
  }
  return 0;
}
