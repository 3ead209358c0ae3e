// Splits streamed text into the answer and the tool calls of the minimax_m3 format. Tags count only
// with the namespace marker before them, matched as text because a model may spell a marker out of
// ordinary tokens. Source: spec/frontend.md section 4.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_arguments.h"

namespace winnow {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

/// Tool name -> JSON schema of its parameters.
using ToolSchemas = std::map<std::string, nlohmann::ordered_json, std::less<>>;

class ToolCallParser {
 public:
  struct Piece {
    std::string content;
    std::vector<ToolCall> calls;
  };

  /// `schemas` must outlive the parser.
  explicit ToolCallParser(const ToolSchemas& schemas) : schemas_(&schemas) {}

  /// What became certain with `text`: a call when its closing tag is there. A call that is
  /// malformed comes out as content, with its tags; text after the block of calls is dropped.
  Piece add(std::string_view text);
  /// The rest. Of a block that was cut off, finished calls count and the tail is dropped.
  Piece finish();

  /// Calls so far.
  int num_calls() const { return num_calls_; }

 private:
  enum class State { kText, kBlock, kDone };

  Piece parse(bool is_last);
  /// Each takes what it can from the front of pending_ and says whether there may be more to take.
  bool take_text(Piece& out, bool is_last);
  bool take_from_block(Piece& out);
  bool take_call(std::size_t begin, Piece& out);

  const ToolSchemas* schemas_;
  State state_ = State::kText;
  int num_calls_ = 0;
  std::string pending_;
  std::size_t searched_ = 0;  // of pending_: no end of the open call before here
};

}  // namespace winnow
