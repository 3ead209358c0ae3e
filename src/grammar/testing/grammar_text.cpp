#include "grammar/testing/grammar_text.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "grammar/schema_check.h"

namespace winnow::testing {

const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_file(WINNOW_SOURCE_DIR "/models/winnow-tiny");
  return tokenizer;
}

// A few more ids than strings, as checkpoints have them.
std::int32_t tiny_vocab_size() { return tiny_tokenizer().vocab_size() + 3; }

TokenId tiny_stop_id() { return *tiny_tokenizer().token_to_id("[e~["); }

GrammarCompiler& tiny_compiler() {
  static GrammarCompiler compiler(tiny_tokenizer(), tiny_vocab_size(), {tiny_stop_id()});
  return compiler;
}

std::shared_ptr<const CompiledGrammar> compile_schema(std::string_view schema) {
  return tiny_compiler().compile(
      {.kind = GrammarKind::kJsonSchema,
       .text = compilable_schema(nlohmann::ordered_json::parse(schema))});
}

bool is_allowed(const std::vector<std::uint32_t>& mask, TokenId token) {
  return (mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1U) != 0;
}

bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  GrammarState state(grammar);
  std::vector<std::uint32_t> mask(grammar->vocabulary().num_mask_words());
  for (const TokenId token : tiny_tokenizer().encode(text)) {
    if (state.fill_mask(mask) && !is_allowed(mask, token)) return false;
    if (!state.accept(token)) return false;
  }
  return !state.fill_mask(mask) || is_allowed(mask, tiny_stop_id());
}

std::string random_text(const std::shared_ptr<const CompiledGrammar>& grammar,
                        std::mt19937_64& random, int max_tokens) {
  GrammarState state(grammar);
  std::vector<std::uint32_t> mask(grammar->vocabulary().num_mask_words());
  std::string text;
  for (int step = 0; step < max_tokens; ++step) {
    if (!state.fill_mask(mask)) return {};
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < tiny_vocab_size(); ++token) {
      if (is_allowed(mask, token)) allowed.push_back(token);
    }
    if (allowed.empty()) return {};
    TokenId token = allowed[random() % allowed.size()];
    if (is_allowed(mask, tiny_stop_id()) && (step > max_tokens / 2 || random() % 4 == 0)) {
      token = tiny_stop_id();
    }
    if (!state.accept(token)) return {};
    if (token == tiny_stop_id()) return text;
    text += tiny_tokenizer().token_bytes(token);
  }
  return {};
}

}  // namespace winnow::testing
