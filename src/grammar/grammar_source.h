// What an answer may be, as a request says it: the text of a grammar and its language.
#pragma once

#include <string>

namespace winnow {

enum class GrammarKind {
  kJsonSchema,
  kRegex,          // of the whole answer
  kEbnf,           // its root rule is "root"
  kLark,           // its root rule is "start"
  kStructuralTag,  // XGrammar's own JSON form, also what tool calls are made into
};

/// White space between two tokens of JSON, at most: a model that began a run of it might never end.
inline constexpr int kMaxJsonBlanks = 32;

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;
  bool any_whitespace = true;   // JSON schema: white space between tokens of JSON is free
  bool allows_markers = false;  // the marker tokens of thinking and tool calls may appear

  friend bool operator==(const GrammarSource&, const GrammarSource&) = default;
};

}  // namespace winnow
