// What CompiledGrammar hides; for the files of this folder that speak to XGrammar.
#pragma once

#include <xgrammar/xgrammar.h>

#include <memory>

#include "grammar/compiled_grammar.h"
#include "grammar/grammar_vocabulary.h"

namespace winnow {

struct CompiledGrammar::Impl {
  xgrammar::CompiledGrammar grammar;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

}  // namespace winnow
