// A body of /v1/responses, alone or going on from a stored response: translated to a chat body
// which the chat route then takes or refuses, or refused itself; always with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "server/responses/responses_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace winnow;
  using namespace winnow::server;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static ResponseStore store({});
  static const bool is_filled = [] {
    store.begin({.id = "resp_1", .caller = "", .body = "{}", .turn = nullptr, .stop = nullptr});
    store.finish("resp_1", "{}",
                 std::make_shared<ConversationTurn>(
                     nullptr, R"([{"role":"user","content":"x"}])",
                     R"([{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}])",
                     store.turn_bytes()));
    return true;
  }();
  (void)is_filled;
  try {
    const ResponsesRequest asked = read_responses_request(parse_body(text), store, "");
    ChatRequest chat = read_chat_request(asked.chat, {}, {});
    (void)template_variables(chat).dump(-1, ' ', false, Json::error_handler_t::replace);
    const std::size_t few = chat.messages.size() / 2;
    (void)drop_oldest_turns(
        chat, [few](const ChatRequest& candidate) { return candidate.messages.size() <= few; });
  } catch (const Error&) {
  }
  return 0;
}
