// Splits streamed text into thinking and answer by the markers <mm:think> and </mm:think>, matched
// as text because a model may spell a marker out of ordinary tokens. Source: spec/frontend.md
// section 3.
#pragma once

#include <string>
#include <string_view>

namespace winnow {

struct ReasoningOptions {
  bool tools_active = false;       // a tool call that starts inside the thinking ends it
  bool thinks_first_only = false;  // kOpen: a marker counts at offset 0 only
};

class ReasoningParser {
 public:
  enum class State {
    kOpen,  // the answer, until an opener; a bare closer at offset 0 is the model's "no thinking"
    kReasoning,  // thinking, until a closer
    kContent,    // the answer, later markers included
  };

  struct Piece {
    std::string reasoning;
    std::string content;
  };

  /// `initial` is kReasoning when the prompt itself ended in the opener, else kOpen.
  explicit ReasoningParser(State initial, const ReasoningOptions& options = {});

  /// What became certain with `text`; at most one marker less a byte is held back.
  Piece add(std::string_view text);
  /// The rest: a held marker prefix goes to the part that was open.
  Piece finish();

  State state() const { return state_; }

 private:
  /// False: a marker at offset 0 may still be coming.
  bool pass_start(bool is_last);
  bool pass_decisive_start(bool is_last);
  void parse_open(Piece& out, bool is_last);
  void parse_reasoning(Piece& out, bool is_last);
  Piece parse(bool is_last);

  State state_;
  ReasoningOptions options_;
  bool is_at_start_ = true;
  std::string pending_;
};

}  // namespace winnow
