// Bytes before the first NUL are a template, the rest a JSON context (none: a fixed one). Checks
// that a rendering ends in text or in an Error, within its limits.
#include <cstdint>
#include <string_view>

#include "base/assert.h"
#include "base/error.h"
#include "text/chat_template.h"
#include "text/jinja/json.h"
#include "text/unicode.h"

namespace {

constexpr std::string_view kContext = R"({
  "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi é"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
      "arguments": {"a": 1, "b": [true, {"c": "x"}], "d": null, "e": 1.5}}}]},
    {"role": "tool", "content": [{"type": "text", "text": "2"}]}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"items": {}}}}],
  "add_generation_prompt": true, "name": "World", "number": 7, "float": 2.5, "nothing": null,
  "big": 123456789012345678901234567890, "words": ["b", "A", "c"], "numbers": [3, 1, 2]})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t nul = input.find('\0');
  winnow::RenderOptions options;
  options.limits.max_steps = 20'000;
  options.limits.max_output_bytes = 1 << 18;
  options.limits.max_allocated_bytes = 1 << 22;
  options.limits.max_depth = 200;
  try {
    const winnow::ChatTemplate chat(input.substr(0, nul), "fuzz");
    const std::string_view json = nul == std::string_view::npos ? kContext : input.substr(nul + 1);
    bool last_origin = false;
    bool is_first = true;
    for (const winnow::TextSegment& segment :
         chat.render_segments(winnow::jinja::parse_json(json), options)) {
      WINNOW_ASSERT(!segment.text.empty(), "segments are not empty");
      WINNOW_ASSERT(is_first || segment.is_from_template != last_origin, "neighbours differ");
      WINNOW_ASSERT(winnow::well_formed_prefix(segment.text) == segment.text.size(),
                    "text stays well-formed");
      last_origin = segment.is_from_template;
      is_first = false;
    }
  } catch (const winnow::Error&) {
    // Refused with a message, which is what a bad template should get.
  }
  return 0;
}
