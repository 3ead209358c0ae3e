// Template source to tokens, with the white-space rules of trim_blocks and lstrip_blocks.
// Rules: the jinja2 manual, "Whitespace Control" and "Escaping".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace winnow::jinja {

struct Token {
  enum class Kind {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,  // text without quotes, escapes resolved
    kInteger,
    kFloat,
    kOperator,
    kEnd,
  };
  Kind kind;
  std::string text;
  int line;
};

/// The last token is kEnd. Throws Error (kInvalidCheckpoint) with `name` and the line.
std::vector<Token> tokenize(std::string_view source, std::string_view name);

[[noreturn]] void fail_syntax(std::string_view name, int line, std::string_view message);

}  // namespace winnow::jinja
