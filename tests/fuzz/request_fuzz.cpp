// A request body of the chat or the completion route: parsed, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  using namespace winnow;
  using namespace winnow::server;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const RequestPolicy policy;
  const GenerationDefaults defaults;
  try {
    const Json body = parse_body(text);
    if (data[0] % 2 == 0) {
      const ChatRequest request = read_chat_request(body, policy, defaults);
      (void)template_variables(request).dump(-1, ' ', false, Json::error_handler_t::replace);
    } else {
      (void)read_completion_request(body, policy, defaults);
    }
  } catch (const Error&) {
  }
  return 0;
}
