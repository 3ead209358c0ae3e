// A reply with tool calls, cut anywhere: what is told of calls while they are written adds up to
// the calls of the whole text. The first byte seeds the cuts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_call_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  using namespace winnow;
  static const ToolSchemas schemas = {
      {"f", nlohmann::ordered_json::parse(R"({"type":"object","properties":{
          "a":{"type":["array","string"],"items":{"type":"object"}},"s":{"type":"string"},
          "b":{"anyOf":[{"type":"null"},{"type":"object","properties":{"a":{"type":"string"}}}]}}})")}};
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  ToolCallParser whole(schemas);
  ToolCallParser::Piece expected = whole.add(text);
  expected.content += whole.finish().content;

  ToolCallParser parser(schemas, /*gives_deltas=*/true);
  std::string content;
  std::map<int, ToolCall> told;
  std::vector<int> complete;
  const auto take = [&](const ToolCallParser::Piece& piece) {
    content += piece.content;
    for (const ToolCallDelta& delta : piece.deltas) {
      told[delta.index].name += delta.name;
      told[delta.index].arguments += delta.arguments;
      if (delta.is_complete) complete.push_back(delta.index);
    }
  };
  std::uint32_t random = data[0];
  for (std::size_t at = 0; at < text.size();) {
    random = random * 1664525U + 1013904223U;
    const std::size_t step = 1 + (random >> 24) % 9;
    take(parser.add(text.substr(at, step)));
    at += step;
  }
  take(parser.finish());
  if (content != expected.content || complete.size() != expected.calls.size()) std::abort();
  for (std::size_t i = 0; i < complete.size(); ++i) {
    const ToolCall& call = told[complete[i]];
    if (call.name != expected.calls[i].name || call.arguments != expected.calls[i].arguments) {
      std::abort();
    }
  }
  return 0;
}
