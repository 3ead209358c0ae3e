// response_format, structured_outputs and the older guided_* fields: what an answer may be.
// Source: spec/serving-fields.md 2.2.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/sample/token_filter.h"
#include "grammar/grammar_source.h"
#include "server/generation.h"
#include "server/json_fields.h"
#include "text/reasoning_parser.h"

namespace winnow::server {

/// A grammar and the field that asked for it.
struct AnswerGrammar {
  GrammarSource source;
  std::string param;
};

/// Throws Error whose param is the path of the member at fault. response_format wins over the
/// others, as in vLLM.
std::optional<AnswerGrammar> read_structured_output(Fields& fields);

/// Compiles, and waits for it. `reasoning`: where the reply begins; none: the grammar is of the
/// whole reply. Throws Error with the grammar's param.
std::shared_ptr<const TokenFilter> make_token_filter(
    const AnswerGrammar& grammar, std::optional<ReasoningParser::State> reasoning,
    const ServingModel& model);

}  // namespace winnow::server
