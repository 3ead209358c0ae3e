// The grammar of a reply that must call tools: one block in the minimax_m3 syntax, names from a
// list, and the elements that each tool's schema asks for. What text/tool_call_parser.h reads from
// such a reply fits the schema. Source: spec/frontend.md sections 4.1, 4.2 and 4.5.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "grammar/grammar_source.h"

namespace winnow {

struct CallableTool {
  std::string name;
  const nlohmann::ordered_json* parameters = nullptr;  // null: any arguments of text
  std::string path;  // of the parameters in the request, for errors
};

struct ToolGrammarOptions {
  bool allows_several = true;  // calls in the block
  /// An answer without a call is fine too: one of `other_answer`, or where that is null any text,
  /// after which the block may still come.
  bool may_answer = false;
  const GrammarSource* other_answer = nullptr;
};

/// `tools` is not empty. Members come in the order of the schema; what JSON can say and nested
/// elements cannot (free-form objects, maps, recursive schemas) is written as JSON text, which the
/// parser takes in these places. `format`, and `pattern` beside lengths, are not applied. Throws
/// Error{kInvalidArgument} with the path of the member at fault.
GrammarSource tool_call_grammar(std::span<const CallableTool> tools,
                                const ToolGrammarOptions& options = {});

}  // namespace winnow
