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

#include "text/argument_stream.h"

namespace winnow {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

/// News of a call that is being written: pieces of one call have one index.
struct ToolCallDelta {
  int index = 0;          // over the whole text, with calls that were given up
  std::string name;       // in the first piece of a call, else empty
  std::string arguments;  // the next bytes of a JSON object
  bool is_complete = false;
};

/// Tool name -> JSON schema of its parameters.
using ToolSchemas = std::map<std::string, nlohmann::ordered_json, std::less<>>;

class ToolCallParser {
 public:
  struct Piece {
    std::string content;
    std::vector<ToolCall> calls;
    std::vector<ToolCallDelta> deltas;
  };

  /// `schemas` must outlive the parser. With `gives_deltas` calls are also told while they are
  /// being written. The pieces of a complete call add up to its entry in `calls`, byte for byte. A
  /// call that turns out to be malformed is given up, its JSON unfinished; so is one whose
  /// beginning was told wrongly, which then follows whole under an index of its own.
  explicit ToolCallParser(const ToolSchemas& schemas, bool gives_deltas = false)
      : schemas_(&schemas), gives_deltas_(gives_deltas) {}

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
  /// `call` begins with the open call's opener and holds none of its closer.
  void tell_beginning(std::string_view call, Piece& out);
  void tell_end(const ToolCall& call, Piece& out);
  const nlohmann::ordered_json& schema_of(const std::string& name) const;

  const ToolSchemas* schemas_;
  State state_ = State::kText;
  int num_calls_ = 0;
  std::string pending_;
  std::size_t searched_ = 0;  // of pending_: no end of the open call before here

  struct OpenCall {
    int index;
    std::size_t num_read;  // of the call's text
    ArgumentStream arguments;
    std::string told{};
  };
  bool gives_deltas_;
  int num_told_ = 0;
  std::optional<OpenCall> open_;
};

}  // namespace winnow
