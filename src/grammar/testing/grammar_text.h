// Texts walked through grammars with the bundled model's vocabulary, for tests.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <string_view>

#include "grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace winnow::testing {

/// Of models/winnow-tiny.
const Tokenizer& tiny_tokenizer();
std::int32_t tiny_vocab_size();
TokenId tiny_stop_id();

/// One for all tests.
GrammarCompiler& tiny_compiler();

std::shared_ptr<const CompiledGrammar> compile_schema(std::string_view schema);

/// Whether every token of `text` is allowed where it comes, and the end after the last.
bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text);

/// A text of random allowed tokens, "" when it did not end within `max_tokens`. Tokens that may
/// end the text are preferred after the first `max_tokens` / 2.
std::string random_text(const std::shared_ptr<const CompiledGrammar>& grammar,
                        std::mt19937_64& random, int max_tokens);

bool is_allowed(const std::vector<std::uint32_t>& mask, TokenId token);

}  // namespace winnow::testing
