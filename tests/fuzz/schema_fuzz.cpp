// A JSON schema, a regular expression, a grammar or a structural tag of a request: compiled, or
// refused with an Error; what was compiled then survives a walk through it.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "grammar/grammar_compiler.h"
#include "grammar/schema_check.h"
#include "grammar/testing/grammar_text.h"
#include "grammar/tool_grammar.h"

namespace {

using namespace winnow;
using Json = nlohmann::ordered_json;

GrammarSource source_of(std::uint8_t kind, std::string_view text) {
  if (kind % 5 == 1) return {.kind = GrammarKind::kRegex, .text = std::string(text)};
  if (kind % 5 == 2) return {.kind = GrammarKind::kEbnf, .text = std::string(text)};
  if (kind % 5 == 3) return {.kind = GrammarKind::kLark, .text = std::string(text)};
  const Json schema = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_discarded()) throw Error(ErrorCode::kInvalidJson, "no JSON");
  if (kind % 5 == 4) {
    const std::vector<CallableTool> tools = {{.name = "f", .parameters = &schema, .path = "s"}};
    return tool_call_grammar(tools);
  }
  check_schema(schema, "s");
  return {.kind = GrammarKind::kJsonSchema, .text = compilable_schema(schema)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2 || size > 4096) return 0;
  try {
    const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
    GrammarState state(testing::tiny_compiler().compile(source_of(data[0], text)));
    std::vector<std::uint32_t> mask(state.grammar()->vocabulary().num_mask_words());
    for (std::size_t i = 0; i < size; ++i) {
      (void)state.fill_mask(mask);
      (void)state.accept(data[i]);  // the first ids are single bytes
    }
  } catch (const Error&) {
  }
  return 0;
}
