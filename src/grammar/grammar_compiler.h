// Grammars compiled on threads of their own, each once, and kept while there is room.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/compiled_grammar.h"
#include "grammar/grammar_source.h"
#include "grammar/grammar_vocabulary.h"

namespace winnow {

struct GrammarLimits {
  std::size_t max_source_bytes = 256U << 10;
  std::chrono::milliseconds max_wait{
      10'000};  // for one compilation, its wait in the queue included
  std::int64_t max_cache_bytes = 256LL << 20;  // of kept grammars and their texts
  int num_threads = 2;
  int max_queued = 64;
};

/// Any thread; compile() blocks its caller.
class GrammarCompiler {
 public:
  /// `tokenizer` outlives it. Nothing is prepared before the first compile().
  GrammarCompiler(const Tokenizer& tokenizer, std::int32_t vocab_size,
                  std::vector<TokenId> stop_ids, const GrammarLimits& limits = {});
  /// Waits for what is being compiled, some seconds at most.
  ~GrammarCompiler();

  /// Throws Error{kInvalidArgument} with the reason for a grammar that is malformed, too large, or
  /// not compiled within the limit; {kQueueFull} while too many wait.
  ///
  /// Nothing can stop a compilation. One that is past the limit keeps its thread and another takes
  /// its place, as often as there are threads; while it lasts, the same grammar is refused at once.
  /// With all threads held up so, {kQueueFull} is the answer to every grammar that is not kept.
  std::shared_ptr<const CompiledGrammar> compile(const GrammarSource& source);

  struct Counts {
    std::int64_t num_compiled = 0, num_hits = 0, num_cached = 0, cached_bytes = 0;
    std::int64_t num_overdue = 0;  // past the limit, and still being compiled
    std::int64_t num_threads = 0;  // with a stack: those that were replaced are joined by the next
  };
  Counts counts() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // with its threads
};

}  // namespace winnow
